"""A recipe as a file: read my.json or my.py:function, and save a recipe as JSON."""

import importlib
import sys
from dataclasses import fields, replace
from pathlib import Path

from selfsight.errors import UserError, suggest
from selfsight.outside_code import list_outside_code
from selfsight.recipe import Recipe, Start, from_dict, to_dict
from selfsight.run_files.json_files import (
    create_file,
    explain_write_errors,
    format_json,
    read_object,
)

OF_RUNS = "data_fingerprint"  # a key of the recipe.json of a run folder, which has others beside


def is_recipe_file(name: str) -> bool:
    """Whether a recipe is given as a file, and not by its name."""
    return name.endswith(".json") or ".py:" in name


def read_recipe(name: str) -> Recipe:
    """Read `my.json`, which never runs code, or call the function of `my.py:function`, which does.

    The recipe.json of a run folder is a recipe too; its images and initial weights are ignored.
    """
    recipe = _read_json(Path(name)) if name.endswith(".json") else _call_function(name)
    return replace(recipe, data=replace(recipe.data, path=""), start=Start())


def save_recipe(recipe: Recipe, path: Path) -> None:
    """Write a recipe as JSON, to be edited and passed to `--recipe`; no file is replaced."""
    if path.suffix != ".json":
        raise UserError(f'"{path}" does not end in .json. Give a name such as my.json.')
    if path.exists():
        raise UserError(f"{path} exists. Give another name, or remove it.")
    with explain_write_errors(path), create_file(path) as file:
        file.write(f"{format_json(to_dict(recipe))}\n".encode())


def _read_json(path: Path) -> Recipe:
    saved = read_object(path)
    if saved is None:
        raise UserError(
            f'There is no file "{path}". Write one with: selfsight recipes NAME --save my.json'
        )
    if outside := list_outside_code(saved):
        raise UserError(
            f'{path} names "{outside[0]}", code from outside selfsight, and a recipe in JSON never '
            "runs code. Write it as a function in Python that returns a Recipe, and give "
            "--recipe my.py:function."
        )
    known = [field.name for field in fields(Recipe)]
    for name in () if OF_RUNS in saved else saved:
        if name not in known:
            raise UserError(f'{path} has "{name}", which no recipe has.{suggest(name, known)}')
    try:
        return from_dict(saved)
    except UserError as error:
        raise UserError(f"{path} is not a recipe: {error}") from error


def _call_function(name: str) -> Recipe:
    """Import the user's file as a module, so that its classes are found again later."""
    file, _, function = name.rpartition(":")
    path = Path(file).resolve()
    if not path.is_file():
        raise UserError(f'There is no file "{file}".')
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        module = importlib.import_module(path.stem)
        if Path(module.__file__ or "").resolve() != path:
            raise UserError(f'Another module is called "{path.stem}". Rename {file}.')
        recipe = getattr(module, function)()
    except UserError:
        raise
    except Exception as error:  # code of the user, which may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f'Cannot build the recipe "{name}": {reason}.') from error
    if not isinstance(recipe, Recipe):
        raise UserError(
            f'"{name}" returned {type(recipe).__name__}; it must return a selfsight.Recipe.'
        )
    return recipe
