"""The bench counts the passes of a step, times them, and its numbers add up."""

import json
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image

from selfsight.bench import run, run_bench
from selfsight.bench.backbone_speed_limit import BackbonePass, count_passes
from selfsight.bench.generated_images import HEIGHT, WIDTH, write_photo_like_images
from selfsight.bench.timer import median_ms
from selfsight.cli.main import main
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
    expected = Counter({BackbonePass(n, side, True): times for (n, side), times in trained.items()})
    expected += Counter({BackbonePass(n, side, False): times for (n, side), times in other.items()})
    assert count_passes(method, views(method), moment()) == expected


def test_generated_photographs_are_as_heavy_as_real_ones(tmp_path):
    files = sorted(write_photo_like_images(tmp_path / "generated", 3).rglob("*.jpg"))
    assert len(files) == 3
    for file in files:
        with Image.open(file) as image:
            assert image.size == (WIDTH, HEIGHT)
        assert 30_000 < file.stat().st_size < 90_000


def test_a_function_is_repeated_and_its_median_taken():
    count = []
    assert 0 < median_ms(lambda: count.append(1), torch.device("cpu"), seconds=0.01) < 5
    assert len(count) > 5


def test_limit_and_overhead_add_up_to_a_step_and_json_has_every_timing(tmp_path, capsys):
    rng = np.random.default_rng(0)
    for i in range(32):
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(tmp_path / f"{i}.png")
    settings = {
        "--data": tmp_path,
        "--device": "cpu",
        "--batch-size": 16,
        "--seconds": 0.01,
        "--backbone.name": "resnet8_narrow",
        "--method.queue-size": 64,
        "--method.bn-group": 8,
    }
    flags = [str(word) for pair in settings.items() for word in pair]
    main(["bench", "moco.cifar10_r18_200ep", *flags, "--json"])
    result = json.loads(capsys.readouterr().out)
    ms = {timing["name"]: timing["ms"] for timing in result["timings"]}
    assert list(ms) == [
        "network, forward",
        "network, forward and backward",
        "network alone (the limit)",
        "decode",
        "augment",
        "heads and loss",
        "loss alone",
        "optimizer and teacher",
        "end to end",
    ]
    limit = 1000 * 16 / result["limit"]
    assert ms["network alone (the limit)"] == pytest.approx(limit)
    network = ms["network, forward"] + ms["network, forward and backward"]
    assert network == pytest.approx(limit)
    assert limit + sum(result["overhead"].values()) == pytest.approx(ms["end to end"])
    assert result["fraction_of_limit"] == pytest.approx(limit / ms["end to end"])
    assert result["data_wait"] == 0 and result["step_mode"] == "plain"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"against": "timm"}, "is lightly"),
        ({"against": "lightly", "recipe": "byol.cifar10_r18_100ep"}, "measures moco and simclr"),
        ({"seconds": float("nan")}, "seconds is nan"),
        ({"seconds": -1.0}, "above 0"),
        ({"growth": True, "against": "lightly"}, "--against has no effect"),
        ({"growth": True, "data": "shapes"}, "--data has no effect"),
    ],
)
def test_bad_options_raise_an_error_before_anything_is_measured(options, sentence, monkeypatch):
    monkeypatch.setattr(run_bench, "measure_breakdown", None)
    monkeypatch.setattr(run_bench, "measure_scaling", None)
    with pytest.raises(UserError, match=sentence):
        run(options.pop("recipe", None), **options, device="cpu", quiet=True)


def test_an_unknown_recipe_or_setting_is_named(capsys):
    with pytest.raises(SystemExit):
        main(["bench", "simclr.shapes", "--no-such", "3"])
    assert "There is no flag --no-such" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["bench", "moco.nothing"])
    assert "no recipe" in capsys.readouterr().err


@pytest.mark.slow
def test_training_on_a_cpu_stays_near_its_network_alone():
    """A guard of ratios in one process, not of times: half or more of a step is the network.

    A test that begins or ends beside it disturbs one measurement, so there are three tries.
    """
    tries = (run("simclr.shapes", device="cpu", seconds=1.0, quiet=True) for _ in range(3))
    assert any(result["fraction_of_limit"] > 0.5 for result in tries)
