"""Example pages run from their first line to their last: few labels, other images, own method."""

import re
import shlex
import sys
from collections.abc import Callable

import pytest

from selfsight.cli.main import main
from tests.folders import images
from tests.test_tutorial import list_blocks

Change = Callable[[str], str]


@pytest.fixture
def run_page(tmp_path, monkeypatch, capsys):
    """Run the blocks of a page in their order, each line made smaller; what each printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(page: str, *, python: Change, command: Change) -> list[str]:
        shown = []
        for language, block in list_blocks(page):
            if language == "python":
                exec(python(block), {})
            else:
                for line in block.splitlines():
                    main(shlex.split(command(line))[1:])
            shown.append(" ".join(capsys.readouterr().out.split()))
        return shown

    return run


@pytest.mark.slow
def test_the_page_on_few_labels_runs(run_page):
    def command(line: str) -> str:
        line = line.replace("--recipe simclr.shapes", "--recipe simclr.shapes --epochs 3")
        line = line.replace("--to onnx", "--to safetensors")  # which takes no compiler
        return line + (" --batch-size 60" if " pretrain " in line else "")

    def python(block: str) -> str:
        return block.replace("range(len(source))", "range(180)")

    page = "examples/few_labels.md"
    _, trained, checked, exported = run_page(page, python=python, command=command)
    assert "60 labeled images of 12 classes, 5 of each: these are few" in trained
    assert "on 60 held-out images" in trained and "Predicted 120 of 120 images" in trained
    assert re.search(r"correct: [\d.]+%, the surest tenth: [\d.]+%", checked)
    assert "classes.json" in exported and "Accuracy of each class" in exported


@pytest.mark.slow
def test_the_page_on_other_images_runs(run_page):
    def python(block: str) -> str:
        return block.replace('("train", 120), ("test", 60)', '("train", 24), ("test", 8)')

    def command(line: str) -> str:
        return line.replace("--epochs 10", "--epochs 1")

    shown = run_page("examples/other_images.md", python=python, command=command)
    assert "Not photographs: float32, 6 channels" in shown[1]
    assert "they have no orientation" in shown[1]
    assert "torch.Size([64]) torch.Size([1, 64])" in shown[-1]


@pytest.mark.slow
def test_the_page_on_a_method_of_your_own_runs(run_page, tmp_path, monkeypatch):
    images(tmp_path / "data", count=30)
    monkeypatch.setattr(sys, "path", [*sys.path])  # the command appends the folder of dcl.py

    def python(block: str) -> str:
        write = f"from pathlib import Path; Path('dcl.py').write_text({block!r})"
        return write if "class DCL" in block else block

    def command(line: str) -> str:
        line = line.replace("pretrain shapes", "pretrain data").replace("ed shapes", "ed data")
        line = line.replace("--to onnx", "--to safetensors")  # which takes no compiler
        return line + (" --epochs 3 --batch-size 8" if " pretrain " in line else "")

    _, checked, _, measured, exported, _ = run_page(
        "examples/own_method.md", python=python, command=command
    )
    sys.modules.pop("dcl")
    assert "14 passed, 0 failed, 3 do not apply" in checked
    assert "runs/dcl" in measured and "load_file" in exported
