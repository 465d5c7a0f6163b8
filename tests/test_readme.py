"""Every command and every line of Python in the README runs."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.folders import images

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```(sh|python)\n(.*?)```", README.read_text(), re.DOTALL)
COMMANDS = [
    line.split("#")[0].strip()
    for kind, text in BLOCKS
    if kind == "sh"
    for line in text.splitlines()
    if line.startswith(("selfsight", "torchrun"))
]
SHORTER = ["--epochs", "2", "--device", "cpu"]  # what a test can afford


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with images called as in the README."""
    folder = tmp_path_factory.mktemp("home")
    images(folder / "photos", count=160, size=(96, 80))
    images(folder / "data", count=40, size=(96, 80))
    return folder


def shell(words, home):
    """Run a program of this environment in a person's folder."""
    program = Path(sys.executable).parent / words[0]
    return subprocess.run(
        [program, *words[1:]],
        cwd=home,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_the_commands_run_in_order(home):
    assert len(COMMANDS) >= 10
    for command in COMMANDS:
        words = shlex.split(command)
        if words[1] == "pretrain" and "--epochs" not in words:
            words += SHORTER
        elif words[1] in ("pretrain", "evaluate", "doctor", "resume") and "--device" not in words:
            words += ["--device", "cpu"]
        done = shell(words, home)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    assert (home / "runs/photos-auto/report.html").exists()
    assert (home / "runs/two/report.html").exists()


@pytest.mark.slow
def test_the_python_runs(home):
    (text,) = [text for kind, text in BLOCKS if kind == "python"]
    done = shell(["python", "-c", text + "\nprint(backbone.dim)"], home)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) > 0


def test_every_file_that_the_readme_links_to_exists():
    for target in re.findall(r"\]\(([^)#]+)\)", README.read_text()):
        assert (README.parent / target).exists(), target
