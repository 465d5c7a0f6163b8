"""The bench counts what a step does, times it, and adds up."""

import json
from collections import Counter

import pytest
import torch
from PIL import Image

from selfsight.bench import command, run
from selfsight.bench.generated_images import HEIGHT, WIDTH, photographs
from selfsight.bench.network_limit import Pass, passes
from selfsight.bench.timer import timed
from selfsight.cli import main
from selfsight.errors import UserError
from tests.methods.small import make, moment, views


@pytest.mark.parametrize(
    ("name", "trained", "other"),
    [
        ("moco", {(8, 16): 1}, {(8, 16): 1}),
        ("mocov3", {(8, 16): 2}, {(8, 16): 2}),
        ("simclr", {(8, 16): 2}, {}),
        ("fast_moco", {(32, 8): 2}, {(8, 16): 2}),  # four patches of half the side
        ("jcl", {(8, 16): 1}, {(24, 16): 1}),  # three keys
    ],
)
def test_the_passes_of_a_step_are_those_of_its_paper(name, trained, other):
    method = make(name)
    expected = Counter({Pass(n, side, True): times for (n, side), times in trained.items()})
    expected += Counter({Pass(n, side, False): times for (n, side), times in other.items()})
    assert passes(method, views(method), moment()) == expected


def test_generated_photographs_are_as_heavy_as_real_ones(tmp_path):
    files = sorted(photographs(tmp_path / "made", 3).iterdir())
    assert len(files) == 3
    for file in files:
        with Image.open(file) as image:
            assert image.size == (WIDTH, HEIGHT)
        assert 30_000 < file.stat().st_size < 90_000


def test_a_work_is_repeated_and_its_median_taken():
    count = []
    assert 0 < timed(lambda: count.append(1), torch.device("cpu"), seconds=0.01) < 5
    assert len(count) > 5


def test_parts_limit_and_rest_add_up_to_a_step():
    found = run(
        "moco.cifar10_r18_200ep",
        device="cpu",
        batch_size=64,
        seconds=0.01,
        settings=["--backbone.name", "resnet8_narrow"],
        quiet=True,
    )
    ms = {part["name"]: part["ms"] for part in found["parts"]}
    limit = 1000 * 64 / found["limit"]
    assert ms["network alone (the limit)"] == pytest.approx(limit)
    network = ms["network, forward"] + ms["network, forward and backward"]
    assert network == pytest.approx(limit)
    assert limit + sum(found["rest"].values()) == pytest.approx(ms["end to end"])
    assert found["share"] == pytest.approx(limit / ms["end to end"])
    assert found["waiting"] == 0 and found["way"] == "plain"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"against": "timm"}, "is lightly"),
        ({"against": "lightly", "recipe": "byol.cifar10_r18_100ep"}, "measures moco and simclr"),
        ({"seconds": float("nan")}, "--seconds is nan"),
        ({"seconds": -1.0}, "above 0"),
        ({"growing": True, "against": "lightly"}, "--against means nothing"),
        ({"growing": True, "data": "shapes"}, "--data means nothing"),
    ],
)
def test_bad_words_get_a_sentence_before_anything_is_measured(words, sentence, monkeypatch):
    monkeypatch.setattr(command, "bench", None)
    monkeypatch.setattr(command, "costs", None)
    with pytest.raises(UserError, match=sentence):
        run(**words, device="cpu", quiet=True)


def test_an_unknown_recipe_or_setting_gets_a_sentence(capsys):
    with pytest.raises(SystemExit):
        main(["bench", "simclr.shapes", "--no-such", "3"])
    assert "selfsight bench RECIPE --help" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["bench", "moco.nothing"])
    assert "no recipe" in capsys.readouterr().err


def test_json_is_for_programs(capsys):
    main(
        [
            "bench",
            "simclr.shapes",
            "--device",
            "cpu",
            "--batch-size",
            "16",
            "--seconds",
            "0.01",
            "--json",
        ]
    )
    found = json.loads(capsys.readouterr().out)
    assert found["recipe"] == "simclr.shapes"
    assert [part["name"] for part in found["parts"]] == [
        "network, forward only",
        "network, forward and backward",
        "network alone (the limit)",
        "decode",
        "augment",
        "heads and loss",
        "loss alone",
        "optimizer and teacher",
        "end to end",
    ]


@pytest.mark.slow
def test_training_on_a_cpu_stays_near_its_network_alone():
    """A guard of ratios in one process, not of times: half or more of a step is the network."""
    found = run("simclr.shapes", device="cpu", seconds=1.0, quiet=True)
    assert found["share"] > 0.5
