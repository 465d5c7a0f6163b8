"""The example page on few labels runs from its first line to its last."""

import re
import shlex
from pathlib import Path

import pytest

from selfsight.cli.main import main

PAGE = Path(__file__).parents[1] / "docs/few_labels.md"
BLOCKS = re.findall(r"```(python|sh)\n(.*?)\n```", PAGE.read_text(), re.DOTALL)


@pytest.mark.slow
def test_the_blocks_of_the_page_run_in_their_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shown = []
    for language, block in BLOCKS:
        if language == "python":
            exec(block.replace("range(len(source))", "range(180)"), {})
        else:
            block = block.replace("--recipe simclr.shapes", "--recipe simclr.shapes --epochs 3")
            block = block.replace("--to onnx", "--to safetensors")  # which takes no compiler
            for line in block.splitlines():
                small = " --batch-size 60" if " pretrain " in line else ""
                main(shlex.split(line + small)[1:])
        shown.append(" ".join(capsys.readouterr().out.split()))
    _, trained, checked, exported = shown
    assert "60 labeled images of 12 classes, 5 of each: this is little" in trained
    assert "on 60 held-out images" in trained and "Predicted 120 of 120 images" in trained
    assert re.search(r"correct: [\d.]+%, the surest tenth: [\d.]+%", checked)
    assert "classes.json" in exported and "Accuracy of each class" in exported
