"""Damaged files of a run folder: every field of every JSON file, wrong in every way."""

import contextlib
import copy
import io
import itertools
import json
import os
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jaxtyping
import pytest
import torch

import selfsight
from selfsight.cli.main import main
from selfsight.errors import UserError
from selfsight.recipe import Recipe, to_dict
from selfsight.run_files.run_folder import Run
from tests.folders import images
from tests.fuzz.cases import SEED, assert_none_failed, pick_cases, run_case
from tests.fuzz.test_settings import small_recipe

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

COUNT = 1000
REMOVED = "removed"
VALUES: dict[str, Any] = {  # in place of a field
    "null": None,
    "text": "text",
    "number": 3,
    "fraction": -0.5,
    "huge": 10**30,
    "beyond floats": 10**400,
    "nan": float("nan"),
    "infinity": float("inf"),
    "list": [1, "a", None],
    "empty list": [],
    "object": {"x": 1},
    "nested": [[[[{}]]]],
    "true": True,
}
BYTES = {  # in place of a file
    "empty": lambda good: b"",
    "binary": lambda good: bytes(range(256)),
    "cut": lambda good: good[: len(good) // 2],
    "doubled": lambda good: good + good,
    "list for object": lambda good: b"[" + good.strip().split(b"\n")[0] + b"]\n",
    "a number": lambda good: b"3\n",
    "null": lambda good: b"null\n",
    "deep": lambda good: b"[" * 100_000 + b"\n",
    "long number": lambda good: b"1" * 10_000 + b"\n",
    "UTF-16": lambda good: good.decode().encode("utf-16"),
    "zeros": lambda good: bytes(len(good)),
    "large": lambda good: b'{"x": "' + b"y" * 10**7 + b'"}\n',
}
COMMANDS = {
    "resume": lambda run: main(["resume", run, "--device", "cpu"]),
    "evaluate": lambda run: main(
        ["evaluate", run, "--labeled", "photos", "--device", "cpu", "--no-untrained"]
    ),
    "report": lambda run: main(["report", run]),
    "compare": lambda run: main(["evaluate", run, "other", "--compare"]),
    "backbone": lambda run: main(
        ["evaluate", "--backbone", run, "--labeled", "photos", "--device", "cpu", "--out", "b"]
    ),
    "load": lambda run: load(run),
    "replay": lambda run: main(["replay", run, "--device", "cpu"]),
    "reproduce": lambda run: main(["reproduce", run, "--steps", "1", "--device", "cpu"]),
}


class Case(NamedTuple):
    file: str
    path: tuple[str | int, ...]  # empty: the file itself
    damage: str
    command: str


def load(run: str) -> None:
    try:
        selfsight.load(run)
    except UserError as error:
        print(f"selfsight: {error}")
        raise SystemExit(2) from None


def paths_in(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every field, and of lists the first items."""
    found = [path] if path else []
    if isinstance(value, dict):
        inner: Any = value.items()
    else:
        inner = list(enumerate(value))[:2] if isinstance(value, list) else ()
    return found + [p for name, item in inner for p in paths_in(item, (*path, name))]


def commands_of(file: str) -> list[str]:
    """The commands that read a file."""
    if file == "recipe.json":
        return list(COMMANDS)
    if file == "log.jsonl":
        return ["resume", "report", "reproduce"]
    if file == "events.jsonl":
        return ["resume", "report", "reproduce", "replay"]
    if file.startswith("results/"):
        return ["report", "compare", "evaluate", "resume"]
    return ["evaluate"] if "split" in file else ["report"]


def all_cases(run: Path) -> list[Case]:
    cases = []
    for path in sorted(p for p in run.rglob("*") if p.suffix in (".json", ".jsonl", ".npz")):
        file, commands = str(path.relative_to(run)), commands_of(str(path.relative_to(run)))
        cases += [Case(file, (), damage, c) for damage in BYTES for c in commands]
        if path.suffix != ".npz":
            for field in paths_in(read_values(path)):
                cases += [Case(file, field, d, c) for d in (REMOVED, *VALUES) for c in commands]
    random.Random(SEED).shuffle(cases)
    recipe = [c for c in cases if c.file == "recipe.json"]
    # One of each file, then another of each, and so on.
    others = sorted({c.file for c in cases} - {"recipe.json"})
    by_file = [[c for c in cases if c.file == file] for file in others]
    rest = [c for row in itertools.zip_longest(*by_file) for c in row if c is not None]
    return recipe[: COUNT // 2] + rest[: COUNT - COUNT // 2]


def read_values(path: Path) -> Any:
    """The value of a JSON file, or a list of those of its lines."""
    text = path.read_text()
    return list(map(json.loads, text.splitlines())) if path.suffix == ".jsonl" else json.loads(text)


def damage_file(case: Case, run: Path) -> None:
    path = run / case.file
    if not case.path:
        data = b"{}" if path.suffix == ".npz" and case.damage == "UTF-16" else path.read_bytes()
        path.write_bytes(BYTES[case.damage](data))
        return
    place = value = read_values(path)
    for name in case.path[:-1]:
        place = place[name]
    if case.damage == REMOVED:
        del place[case.path[-1]]
    else:
        place[case.path[-1]] = copy.deepcopy(VALUES[case.damage])
    lines = value if path.suffix == ".jsonl" else [value]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two runs of the same recipe, evaluated; the first is stopped after one of two epochs."""
    folder = tmp_path_factory.mktemp("files")
    images(folder / "photos", count=24, size=(16, 16))
    before = Path.cwd()
    os.chdir(folder)
    jaxtyping.config.update("jaxtyping_disable", True)
    recipe = replace(small_recipe("moco"), epochs=2, log_every=1)
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        for name in ("run", "other"):
            selfsight.pretrain("photos", recipe=recipe, out=name, device="cpu", batch_size=8)
            selfsight.evaluate(name, labeled="photos", device="cpu")
            selfsight.evaluate(name, protocols=["analysis"], device="cpu")
        selfsight.compare(["run", "other"])
    (folder / "run/results/verdict.json").unlink()
    os.replace(folder / "run/checkpoints/previous.pt", folder / "run/checkpoints/last.pt")
    run = Run(folder / "run")
    for event in ("collapsed", "skipped"):
        run.add_event({"event": event, "run": "run", "step": 2, "checkpoint": None, "reason": "x"})
    run.add_event({"event": "resumed", "step": 1, "differs": ["torch was 1 and is 2"]})
    yield folder
    jaxtyping.config.update("jaxtyping_disable", False)
    os.chdir(before)


def run_in_folder(case: Case, work: Path) -> None:
    os.chdir(work)
    torch.set_num_threads(1)
    COMMANDS[case.command]("run")


def is_setting(path: tuple[str | int, ...]) -> bool:
    """Whether a field of recipe.json is a setting, without which a run would be another."""
    return bool(path) and path[0] in to_dict(small_recipe("moco")) and path[0] != "data"


def test_a_damaged_file_of_a_run_is_named_and_never_a_traceback(folder, tmp_path, record_property):
    def check(case: Case) -> str | None:
        work = tmp_path / "work"
        shutil.copytree(folder, work)
        damage_file(case, work / "run")
        outcome = run_case(run_in_folder, case, work, seconds=60)
        shutil.rmtree(work)
        if outcome.failure is not None:
            return f"{outcome.failure}: {outcome.output}"
        if case.command == "reproduce" and "Differs from step" in outcome.output:
            return None  # another value may be valid, and then gives another run
        file = Path(case.file).name
        if outcome.status and file not in outcome.output:
            return f"refused without the name of the file: {outcome.said}"
        if case.file == "recipe.json" and case.command in ("load", "resume", "evaluate"):
            wrong = case.damage in (REMOVED, "object") and isinstance((*case.path, "")[0], str)
            field = str(next((p for p in reversed(case.path) if isinstance(p, str)), ""))
            if wrong and is_setting(case.path) and outcome.status != 2:
                return f"accepted: {outcome.said}"
            if outcome.status == 2 and field and field not in outcome.said.replace("-", "_"):
                return f"refused without the name of the field: {outcome.said}"
        return None

    cases = pick_cases(all_cases(folder / "run"), few=12, full=COUNT)
    assert_none_failed("damaged files of a run", cases, check, record_property)


def test_the_fields_of_a_recipe_are_those_of_recipe_json(folder):
    saved = json.loads((folder / "run/recipe.json").read_text())
    assert set(Recipe.__dataclass_fields__) <= set(saved)
