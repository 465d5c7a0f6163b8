"""Rules of the code base that tests can check."""

import ast
import inspect
import re
import zipfile
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement

from selfsight.methods import BASELINES, METHODS
from selfsight.recipes import FILES

ALL_METHODS = METHODS | BASELINES
ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/selfsight"
SHARED = ("__init__", "base")
METHOD_FILES = [p for p in (SOURCE / "methods").glob("*.py") if p.stem not in SHARED]


def test_the_code_of_a_method_fits_on_one_screen():
    """`__init__`, `forward` and `after_step` together have at most 60 lines."""
    lengths = {}
    for path in METHOD_FILES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                lengths[node.name] = sum(
                    f.end_lineno - f.lineno + 1
                    for f in node.body
                    if getattr(f, "name", "") in ("__init__", "forward", "after_step")
                )
    assert len(lengths) >= 2 * len(METHOD_FILES)  # settings and method
    assert {name: n for name, n in lengths.items() if n > 60} == {}


def test_a_method_is_found_by_its_name():
    """Key, file, recipe file and test file."""
    tests = {p.stem for p in (ROOT / "tests/methods").glob("test_*.py")}
    assert {p.stem for p in METHOD_FILES} == set(ALL_METHODS) == set(FILES)
    assert {f"test_{name}" for name in ALL_METHODS} <= tests
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


def test_no_source_file_is_longer_than_400_lines():
    long = {p.name: n for p in SOURCE.rglob("*.py") if (n := len(p.read_text().splitlines())) > 400}
    assert long == {}


def test_the_wheel_holds_every_source_file_and_requires_the_tested_torch(tmp_path):
    (path,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(path) as wheel:
        packed = {name for name in wheel.namelist() if name.startswith("selfsight/")}
        (metadata,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
        lines = wheel.read(metadata).decode().splitlines()
    files = (p for p in SOURCE.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    assert packed == {p.relative_to(SOURCE.parent).as_posix() for p in files}
    required = [
        Requirement(line.split(": ")[1])
        for line in lines
        if line.startswith("Requires-") and not line.startswith("Requires-Python")
    ]
    tested = map(Requirement, (ROOT / "constraints.txt").read_text().splitlines())
    versions = {r.name: str(r.specifier).removeprefix("==") for r in tested}
    for name in ("torch", "torchvision"):
        (requirement,) = (r for r in required if r.name == name)
        assert requirement.specifier.contains(versions[name])


def test_only_views_calls_the_reference_implementation_of_views():
    """Training, evaluation and report make views by `apply_views`."""
    callers = [
        path.relative_to(SOURCE)
        for path in SOURCE.rglob("*.py")
        if re.search(r"apply_views?_reference", path.read_text())
    ]
    assert {path.parts[0] for path in callers} == {"views"}


# Names that say nothing about what a module holds.
FORBIDDEN_NAMES = {
    "parts",
    "pieces",
    "whole",
    "together",
    "facts",
    "strong",
    "faster",
    "fill",
    "rows",
    "limits",
    "waits",
    "show",
    "watch",
    "choose",
    "candidates",
    "outline",
    "utils",
    "helpers",
    "misc",
    "common",
}
# Folders in which a name may be used again, because it is the same thing for another family.
MIRRORED = {
    "recipes": "a method's recipes have the name of its file in methods/",
    "studies": "a method's tables have the name of its file in methods/",
    "views/triton": "the fused counterpart of a module has its name in views/",
    "evals/detection": "detection has its own loader of images, with boxes",
}


def modules():
    return [p.relative_to(SOURCE) for p in SOURCE.rglob("*.py") if not p.stem.startswith("__")]


def test_no_module_has_a_name_that_says_nothing():
    assert [str(path) for path in modules() if path.stem in FORBIDDEN_NAMES] == []


def test_module_names_are_unique_but_for_mirrored_folders():
    names = Counter(p.stem for p in modules() if p.parent.as_posix() not in MIRRORED)
    assert [name for name, count in names.items() if count > 1] == []


# British spelling, and words that STYLE replaces. Random streams keep their names, since these
# decide the numbers; "picture" is a column name of other people's data sets.
REPLACED = re.compile(r"picture|optimis|normalis|colour|labelled|neighbour", re.IGNORECASE)
ALLOWED = ('rng.key(0, "neighbours")', 'rng.key(seed, "pictures")', '"img", "picture")')


def test_readme_docs_and_source_use_the_words_of_the_field():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    sources = [p for p in SOURCE.rglob("*") if p.suffix in (".py", ".js", ".css", ".html")]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in (*pages, *sources)
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if REPLACED.search(line) and not any(allowed in line for allowed in ALLOWED)
    ]
    assert found == []


def test_no_folder_of_tests_is_passed_over(pytestconfig):
    """By pytest's defaults one named "dist" would be."""
    skipped = pytestconfig.getini("norecursedirs")
    folders = {p.parent.name for p in (ROOT / "tests").rglob("test_*.py")}
    assert not [f for f in folders for pattern in skipped if fnmatch(f, pattern)]
