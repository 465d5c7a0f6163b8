"""The README's commands and Python code run, and its links exist."""

import os
import re
import shlex
import shutil
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


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with images, named as in the README."""
    folder = tmp_path_factory.mktemp("home")
    images(folder / "photos", count=160, size=(48, 40))
    images(folder / "data", count=40, size=(48, 40))
    return folder


def run_program(args, home):
    """Run a program of this environment in the folder `home`."""
    program = Path(sys.executable).parent / args[0]
    return subprocess.run(
        [program, *args[1:]],
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
        args = shlex.split(re.sub(r"--epochs \d+", "", command))
        if "pretrain" in args:
            args += ["--epochs", "2"]  # short enough for a test
        if not {"doctor", "pretrain", "evaluate", "resume"}.isdisjoint(args):
            args += ["--device", "cpu"]
        done = run_program(args, home)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    assert (home / "runs/photos-auto/report.html").exists()
    assert (home / "runs/two/report.html").exists()


@pytest.mark.slow
def test_the_python_runs(home):
    (text,) = [text for kind, text in BLOCKS if kind == "python"]
    text = text.replace('"shapes"', '"data"')  # or a folder of images, as it says
    done = run_program(["python", "-c", text + "\nprint(encoder.backbone.dim)"], home)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) > 0


@pytest.mark.parametrize("target", ["demo", "test", "docs"])
def test_make_sets_up_an_empty_clone_first(tmp_path, target):
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copyfile(README.parent / name, tmp_path / name)
    assert re.search(rf"make {target}\b", README.read_text())
    command = ["make", "--dry-run", "--no-print-directory", target]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    commands = done.stdout.splitlines()
    assert "-m venv .venv" in commands[0]
    assert any("pip install" in c and "--editable" in c for c in commands[:3])


def test_every_file_that_the_readme_links_to_exists():
    for target in re.findall(r"\]\(([^)#]+)\)", README.read_text()):
        assert (README.parent / target).exists(), target
