import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import selfsight
from selfsight import api
from selfsight.adaptation import try_arms
from selfsight.backbones import BackboneConfig
from selfsight.cli.main import main
from selfsight.errors import StoppedError, UserError
from selfsight.evals.prediction_scores import PerImage, score_per_image
from selfsight.run_files.run_folder import Run
from tests.exporters.saved_run import save_run
from tests.folders import images

PAGE = Path(__file__).parents[2] / "docs/adapt.md"
NETWORK = {"name": "resnet8_narrow", "stem": "half", "image_size": 32}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder with what the page names: photos, a few labeled ones, an encoder."""
    images(tmp_path / "photos", count=24)
    images(tmp_path / "few", count=12)
    torch.manual_seed(0)
    safetensors.torch.save_file(
        BackboneConfig(**NETWORK).build().state_dict(), tmp_path / "encoder.safetensors"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fixed(*shares):
    """Measure arms, in turn, as right on these shares of 100 images."""
    rest = iter(shares)

    def measure(network, **_):
        correct = (np.arange(100) < 100 * next(rest)).astype(float)
        found = score_per_image(PerImage(n=100, values={"accuracy": correct}))
        return {"linear": found, "knn": found}

    return measure


GIVEN = {
    "init": "encoder.safetensors",
    "stem": "half",
    "labeled": "few",
    "device": "cpu",
    "batch_size": 8,
    "quiet": True,
    "minutes": 60.0,
    "epochs": 2,
    "settings": ("--log-every", "1"),
}


@pytest.mark.slow
def test_an_arm_that_is_worse_than_its_start_is_neither_exported_nor_kept(home, monkeypatch):
    monkeypatch.setattr(try_arms, "measure_labeled", fixed(0.9, 0.4, 0.2))
    found = api.adapt("photos", **GIVEN)
    assert found["choice"] == "frozen" and found["sentence"].startswith("Do not train")
    assert found["worse_than_start"] == ["continued", "scratch"]
    start = safetensors.torch.load_file("encoder.safetensors")
    kept = safetensors.torch.load_file("runs/photos-adapt/encoder/model.safetensors")
    assert all(torch.equal(kept[name], value) for name, value in start.items())
    assert not list(Path("runs/photos-adapt").rglob("*.pt"))
    # The same command shows the result, and other settings are refused.
    monkeypatch.setattr(try_arms, "measure_labeled", None)
    assert api.adapt("photos", **GIVEN) == found
    with pytest.raises(UserError, match="was started with another seed: 0"):
        api.adapt("photos", **GIVEN | {"seed": 1})
    with pytest.raises(UserError, match="holds other files"):
        api.adapt("photos", **GIVEN | {"out": "photos"})


@pytest.mark.slow
def test_what_was_stopped_goes_on_and_the_better_arm_is_exported(home, monkeypatch):
    monkeypatch.setattr(try_arms, "measure_labeled", fixed(0.5))
    train = try_arms.pretrain

    def stop(*args, **keywords):
        train(*args, **keywords, until=3)
        raise StoppedError("Stopped.", 2)

    monkeypatch.setattr(try_arms, "pretrain", stop)
    with pytest.raises(StoppedError, match="Repeat the command to continue"):
        api.adapt("photos", **GIVEN | {"settings": ("--log-every", "1", "--save-steps", "1")})
    monkeypatch.setattr(try_arms, "pretrain", train)
    monkeypatch.setattr(try_arms, "measure_labeled", fixed(0.5, 0.9, 0.1))
    found = api.adapt("photos", **GIVEN | {"settings": ("--log-every", "1", "--save-steps", "1")})
    assert found["choice"] == "continued" and found["worse_than_start"] == ["scratch"]
    run = Run(Path("runs/photos-adapt/continued"))
    steps = [record["step"] for record in run.records()]
    assert steps == sorted(set(steps)) and steps[0] == 1
    kept = safetensors.torch.load_file("runs/photos-adapt/encoder/model.safetensors")
    student = selfsight.load(run).backbone.state_dict()
    assert all(torch.equal(kept[name], value) for name, value in student.items())


@pytest.mark.parametrize(
    ("sentence", "change"),
    [
        ("Name the encoder to start from: --init", {"init": None}),
        ("There is no file or run folder", {"init": "nowhere", "stem": None}),
        ("minutes is 0.0; it must be above 0", {"minutes": 0.0}),
        ("--out is empty", {"out": " "}),
        ("does not exist|no such|There is no", {"labeled": "nowhere"}),
    ],
)
def test_what_cannot_be_done_is_refused_in_a_sentence(sentence, change, home):
    with pytest.raises(UserError, match=sentence):
        api.adapt("photos", **GIVEN | change)


@pytest.mark.slow
def test_the_commands_and_the_code_of_the_page_run(home, capsys):
    images(home / "photos", count=64)
    save_run(home / "runs/first", **NETWORK)
    text = PAGE.read_text()
    for command in re.findall(r"^selfsight (.*)$", text, re.MULTILINE):
        main([*shlex.split(command), "--device", "cpu", "--epochs", "1"])
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    code = code.replace("minutes=30", 'minutes=30.0, epochs=1, device="cpu"')
    capsys.readouterr()
    exec(code, {})
    found = json.loads((home / "runs/photos-adapt/adapt.json").read_text())
    assert f"{found['choice']} {found['sentence']}" in capsys.readouterr().out
    assert Run(home / "runs/careful").saved_recipe()["start"]["freeze"] == 1
