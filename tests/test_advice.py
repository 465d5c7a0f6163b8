"""Whoever takes the advice of a refusal is not refused again."""

import re

import pytest

from selfsight import api
from selfsight.errors import UserError
from selfsight.methods import METHODS
from selfsight.runs import start_or_resume
from tests.folders import images

pytestmark = pytest.mark.slow
COUNT = 36


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return images(tmp_path_factory.mktemp("data") / "photos", count=COUNT)


@pytest.fixture
def check(photos, tmp_path, monkeypatch):
    """`check(flags)` makes every check of `selfsight pretrain`, and does not train."""
    monkeypatch.setattr(start_or_resume, "_write_recipe_and_train", lambda *_: True)

    def pretrain(*flags, **options):
        options = {"method": "simclr", "batch_size": 8, "epochs": 3} | options
        api.pretrain(photos, device="cpu", out=tmp_path / "run", settings=flags, **options)

    return pretrain


def refused(check, match, *flags, **options):
    """What the groups of the pattern match in the refusal."""
    with pytest.raises(UserError, match=match) as caught:
        check(*flags, **options)
    return re.search(match, str(caught.value)).groups()


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_batch_for_few_images(check, method):
    (most,) = refused(check, r"Use --batch-size (\d+) or smaller", batch_size=32, method=method)
    assert int(most) == COUNT // 2
    for batch_size in (int(most), None):
        check(batch_size=batch_size, method=method)


# Flags, what the refusal says, and what its advice makes of the flags.
ADVICE = [
    (
        {"method": "nnclr", "--method.queue-size": 4},
        r"Make the queue (\d+) or longer",
        lambda size: {"--method.queue-size": size},
    ),
    (
        {"method": "nnclr", "--method.queue-size": 4},
        r"or the batch smaller",
        lambda: {"batch_size": 4},
    ),
    (
        {"method": "moco", "--method.bn-group": 3},
        r"Choose a batch that is a multiple of bn_group",
        lambda: {"batch_size": 9},
    ),
    (
        {"method": "swav", "--method.num-prototypes": 50},
        r"Use fewer prototypes, a larger batch or a longer queue",
        lambda: {"--method.queue-size": 48},
    ),
    (
        {"method": "swav", "--method.bn": "split"},
        r'Use method\.bn "(\w+)"',
        lambda bn: {"--method.bn": bn},
    ),
    (
        {"--method.num-negatives": 99},
        r"Ask for (\d+) or fewer",
        lambda most: {"--method.num-negatives": most},
    ),
    (
        {"--method.bn": "shuffle", "--method.bn-group": 8},
        r'Use "sync" or "(\w+)"',
        lambda bn: {"--method.bn": bn},
    ),
    (
        {"method": "fast_moco", "--views.0.size": 33, "--views.1.size": 33},
        r"Use views of (\d+) or (\d+) pixels",
        lambda low, high: {"--views.0.size": low, "--views.1.size": high},
    ),
    ({"keep_epochs": (9,)}, r"Leave it out, or raise epochs", lambda: {"epochs": 9}),
    ({"epochs": 0}, r"(\d+) or more|at least (\d+)", lambda *least: {"epochs": 1}),
    (
        {"method": "supervised"},
        r"Add --labels",
        lambda: {"labels": True},
    ),
    (
        {"--optim.schedule.warmup-epochs": 5},
        r"Lower|raise",
        lambda: {"--optim.schedule.warmup-epochs": 1},
    ),
    (
        {"--chunk": 4},
        r"\((--method\.bn) (split) (--method\.bn-group) N, with N a divisor of the chunk\)",
        lambda bn, split, group: {bn: split, group: 2},
    ),
    ({"--chunk": 4}, r"\((--method\.norm) (ln)\)", lambda norm, ln: {norm: ln}),
]


@pytest.mark.parametrize(
    ("wrong", "match", "advice"), ADVICE, ids=[match for _, match, _ in ADVICE]
)
def test_the_advice_of_a_refusal_can_be_taken(check, wrong, match, advice):
    def split(settings):
        flags = [str(w) for k, v in settings.items() if k.startswith("--") for w in (k, v)]
        return flags, {k: v for k, v in settings.items() if not k.startswith("--")}

    flags, options = split(wrong)
    said = refused(check, match, *flags, **options)
    flags, options = split(wrong | advice(*said))
    check(*flags, **options)


def test_processes_that_cannot_share_a_batch(check, monkeypatch):
    monkeypatch.setattr(start_or_resume.dist, "world_size", lambda: 3)
    monkeypatch.setattr(start_or_resume.dist, "gather_objects", lambda value: [value])
    monkeypatch.setattr(start_or_resume.dist, "on_first", lambda function: function())
    monkeypatch.setattr(start_or_resume.dist, "all_sum", lambda x: x)
    (multiple,) = refused(check, r"Use a multiple of (\d+)")
    check(batch_size=4 * int(multiple))
    check(batch_size=None)
