"""The page on several runs: its commands run in their order."""

import re
import shlex
from pathlib import Path

import pytest

from selfsight.cli.main import main
from tests.folders import QUICK, images

PAGE = Path(__file__).parents[1] / "docs/several_runs.md"
LINES = "\n".join(re.findall(r"```sh\n(.*?)\n```", PAGE.read_text(), re.DOTALL)).splitlines()


@pytest.mark.slow
def test_the_commands_of_the_page_run_in_their_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    images(tmp_path / "photos", count=16)
    small = (*QUICK, "--views.0.size", "16", "--views.1.size", "16", "--epochs", "1")
    shown = []
    for line in LINES:
        words = shlex.split(line)[1:]
        more = {"pretrain": small, "evaluate": ("--device", "cpu")}.get(words[0], ())
        main([*words, *(() if "--compare" in words else more)])
        shown.append(" ".join(capsys.readouterr().out.split()))
    assert "over seeds" in shown[0] and "simclr-seed2" in shown[0]
    assert (tmp_path / "comparison.html").exists()
    assert "over seeds" in shown[-1] and "knn" in shown[-1]
