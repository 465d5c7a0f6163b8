"""The guide to adding a method, followed word for word in a copy of the project."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/adding-a-method.md").read_text()
FILES = dict(
    re.findall(r"^\*\*(\S+\.py)\*\*\n\n```python\n(.*?)```$", GUIDE, re.MULTILINE | re.DOTALL)
)


def test_the_guide_has_three_files():
    folders = ["src/selfsight/methods", "src/selfsight/recipes", "tests/methods"]
    assert [str(Path(name).parent) for name in FILES] == folders


@pytest.mark.slow
def test_the_three_files_of_the_guide_add_a_method_that_passes_every_check(tmp_path):
    ignore = shutil.ignore_patterns("__pycache__", "results", "*.npz")
    for folder in ("src", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignore)
    (tmp_path / "src/selfsight/studies/results").mkdir()
    for name in ("pyproject.toml", "constraints.txt", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for name, text in FILES.items():
        assert not (tmp_path / name).exists()
        (tmp_path / name).write_text(text)
    section = GUIDE.partition("## Check it")[2]
    commands = re.search(r"```sh\n(.*?)```", section, re.DOTALL)[1].splitlines()
    ours = {"python": [sys.executable], "selfsight": [sys.executable, "-m", "selfsight"]}
    for command in [
        *commands,
        "selfsight recipes align_uniform",
        "lint-imports",
        f"ruff check {' '.join(FILES)}",
    ]:
        program, *words = shlex.split(command)
        tool = ours.get(program, [str(Path(sys.executable).with_name(program))])
        if "pytest" in words:
            words += ["-p", "no:cacheprovider", "--basetemp", str(tmp_path / "pytest")]
        done = subprocess.run(
            [*tool, *words],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(tmp_path / "src")},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}{done.stderr[-1000:]}"
        assert "align_uniform" in done.stdout or program in ("python", "lint-imports", "ruff")
