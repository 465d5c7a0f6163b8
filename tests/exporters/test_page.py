"""The page "Use your encoder" shows what the command prints, and its lines give the features."""

import re
import shlex
from pathlib import Path

import pytest
import torch

import selfsight
from selfsight.cli.main import main
from tests.exporters import detectron2_stand_in
from tests.exporters.saved_run import save_photo, save_run

PAGE = Path(__file__).parents[2] / "docs/use_your_encoder.md"
EMBEDDED = re.findall(
    r"```sh\n(selfsight embed [^\n]+)\n```.*?```python\n(.*?)\n```", PAGE.read_text(), re.DOTALL
)
PAIRS = re.findall(
    r"```sh\n(selfsight export [^\n]+)\n```\s+```python\n(.*?)\n```", PAGE.read_text(), re.DOTALL
)
# From the file of an image; timm and the lines of onnx resize with Pillow, which rounds otherwise.
LIMITS = {"timm": 1e-2, "onnx": 1e-2}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with the run and the image of the page."""
    home = tmp_path_factory.mktemp("home")
    save_run(home / "runs/photos-auto", name="resnet18", image_size=224)
    save_photo(home / "photo.jpg")
    (home / "photos").mkdir()
    for seed in range(3):
        save_photo(home / f"photos/{seed}.jpg", seed=seed)
    return home


@pytest.fixture(scope="module")
def expected(home):
    return selfsight.load(home / "runs/photos-auto").encode(home / "photo.jpg").detach()


def test_the_page_has_every_target():
    targets = {re.search(r"--to (\w+)", command)[1] for command, _ in PAIRS}
    assert targets == {"safetensors", "torchvision", "timm", "hf", "onnx", "detectron2"}


@pytest.mark.slow
@pytest.mark.parametrize(("command", "lines"), PAIRS, ids=[command for command, _ in PAIRS])
def test_the_lines_of_the_page_give_the_features(
    command, lines, home, expected, monkeypatch, capsys
):
    detectron2_stand_in.install(monkeypatch)
    monkeypatch.chdir(home)
    main(shlex.split(command)[1:])
    assert lines in capsys.readouterr().out
    names = {}
    exec(lines, names)
    found = torch.as_tensor(names["features"]).detach()[0]
    difference = float((found - expected).abs().max() / expected.abs().max())
    target = re.search(r"--to (\w+)", command)[1]
    limit = 1e-5 if "--with-transform" in command else LIMITS.get(target, 1e-5)
    print(f"{command}: {difference:.1e}")
    assert difference < limit


@pytest.mark.slow
def test_the_vectors_are_read_as_the_page_says(home, monkeypatch):
    monkeypatch.chdir(home)
    expected = selfsight.load("runs/photos-auto").encode(sorted(home.glob("photos/*")))
    for command, lines in EMBEDDED:
        main([*shlex.split(command)[1:], "--device", "cpu"])
        names = {}
        exec(lines, names)
        assert names["paths"] == ["0.jpg", "1.jpg", "2.jpg"]
        assert torch.equal(torch.from_numpy(names["vectors"]), expected)
    assert len(EMBEDDED) == 2


@pytest.mark.slow
def test_the_classifier_of_the_page_is_trained_and_predicts(home, monkeypatch, capsys):
    monkeypatch.chdir(home)
    for seed in range(6):
        folder = home / "flowers" / ("rose" if seed % 2 else "daisy")
        folder.mkdir(parents=True, exist_ok=True)
        save_photo(folder / f"{seed}.jpg", seed=seed)
    commands = re.findall(r"^selfsight classify [^\n]+$", PAGE.read_text(), re.MULTILINE)
    for command in commands:
        main([*shlex.split(command)[1:], "--device", "cpu"])
    assert len(commands) == 2 and "Wrote predictions.csv" in capsys.readouterr().out
    lines = (home / "predictions.csv").read_text().splitlines()
    assert lines[0] == '"path","label","confidence","label_2","confidence_2","error"'
    exec(re.search(r"```python\n(import selfsight\n\nclassifier.*?)```", PAGE.read_text(), re.S)[1])
    assert capsys.readouterr().out.split()[0] in ("daisy", "rose")
    command = re.search(r"`(selfsight export [^`]+ --classifier [^`]+)`", PAGE.read_text())[1]
    main(shlex.split(command)[1:])
    assert "AutoModelForImageClassification" in capsys.readouterr().out


def test_the_searches_of_the_page_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save_run(tmp_path / "runs/photos-auto", name="resnet8_narrow", image_size=32)
    (tmp_path / "photos").mkdir()
    for seed in range(3):
        save_photo(tmp_path / f"photos/{seed}.jpg", seed=seed)
    save_photo(tmp_path / "query.jpg", seed=1)
    commands = re.findall(r"^selfsight search [^\n]+$", PAGE.read_text(), re.MULTILINE)
    for command in commands:
        main([*shlex.split(command)[1:], "--device", "cpu"])
    said = capsys.readouterr().out
    assert said.index("1.jpg") < said.index("0.jpg")  # the query is a copy of it
    assert "Wrote cleaned.txt" in said and len(commands) == 2
