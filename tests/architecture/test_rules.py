"""Rules the reviewers would otherwise repeat."""

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from selfsight.methods import BASELINES, METHODS
from selfsight.recipes import FILES
from tests.methods.small import SMALL

ALL_METHODS = METHODS | BASELINES
ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/selfsight"
METHOD_FILES = [p for p in (SOURCE / "methods").glob("*.py") if p.stem not in ("__init__", "base")]


@pytest.mark.parametrize("path", sorted(METHOD_FILES), ids=lambda p: p.stem)
def test_a_method_fits_on_one_screen(path):
    """`__init__`, `forward` and `after_step` together."""
    contract = ("__init__", "forward", "after_step")
    for cls in (
        node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)
    ):
        functions = [n for n in cls.body if isinstance(n, ast.FunctionDef) and n.name in contract]
        assert sum(f.end_lineno - f.lineno + 1 for f in functions) <= 60, cls.name


def test_a_method_is_found_by_its_name():
    """Key, file, recipe file and small settings for the contract tests."""
    assert {p.stem for p in METHOD_FILES} == set(ALL_METHODS) == set(FILES) == set(SMALL)
    for name, config in ALL_METHODS.items():
        assert inspect.getmodule(config).__name__ == f"selfsight.methods.{name}"


@pytest.mark.parametrize("name", ALL_METHODS)
def test_a_method_file_names_its_paper(name):
    assert re.search(
        r"\(.+ \d{4}, arXiv:\d{4}\.\d{5}", inspect.getmodule(ALL_METHODS[name]).__doc__
    )


def test_the_loop_and_the_driver_stay_readable():
    lines = [
        len((SOURCE / "train" / f).read_text().splitlines()) for f in ("loop.py", "pretrain.py")
    ]
    assert sum(lines) <= 300


def test_no_source_file_needs_a_map():
    long = {p.name: n for p in SOURCE.rglob("*.py") if (n := len(p.read_text().splitlines())) > 400}
    assert long == {}


def test_the_wheel_and_the_constraints_agree_on_torch():
    text = (ROOT / "constraints.txt").read_text().splitlines()
    assert "torch==2.11.0" in text and "torchvision==0.26.0" in text


def test_commands_start_without_a_compiler():
    """Importing one, or what imports it, would add seconds to every command."""
    heavy = ("torch._dynamo", "torchvision", "sklearn", "timm", "triton")
    names = f"[name for name in {heavy} if name in sys.modules]"
    text = f"import sys, selfsight.api, selfsight.bench; print({names})"
    found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_only_views_calls_the_reference_implementation_of_views():
    """Training, evaluation and report make views by `apply_views` and `apply_eval_view`."""
    callers = [
        path.relative_to(SOURCE)
        for path in SOURCE.rglob("*.py")
        if re.search(r"apply_(eval_)?views?_reference", path.read_text())
    ]
    assert {path.parts[0] for path in callers} == {"views"}
