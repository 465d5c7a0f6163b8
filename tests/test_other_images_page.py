"""The example page on other images than photographs runs from its first line to its last."""

import re
import shlex
from pathlib import Path

import pytest

from selfsight.cli.main import main

PAGE = Path(__file__).parents[1] / "docs/other_images.md"
BLOCKS = re.findall(r"```(python|sh)\n(.*?)\n```", PAGE.read_text(), re.DOTALL)


@pytest.mark.slow
def test_the_blocks_of_the_page_run_in_their_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shown = []
    for language, block in BLOCKS:
        if language == "python":
            exec(block.replace('("train", 120), ("test", 60)', '("train", 24), ("test", 8)'), {})
        else:
            for line in block.splitlines():
                main(shlex.split(line.replace("--epochs 10", "--epochs 1"))[1:])
        shown.append(capsys.readouterr().out)
    described, used = shown[1], shown[-1]
    assert "Not photographs: float32, 6 channels" in described
    assert "they look alike" in " ".join(described.split())
    assert "torch.Size([64]) torch.Size([1, 64])" in used
