"""Code from outside selfsight: import `package.module:Name`, and find it again for a run."""

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from selfsight.errors import UserError

WHAT_TO_DO = (
    "Install its package, add the folder that holds it to PYTHONPATH, or run the command in that "
    "folder."
)


def import_name(name: str, what: str) -> Any:
    """Import `package.module:Name` from the Python path, or else from the current folder.

    `what` names its role, such as "method", in the error message.
    """
    module, _, attribute = name.partition(":")
    is_found = _extend_path(module, [str(Path.cwd())])
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # code of the user, which may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        advice = _advise(name) if is_found else WHAT_TO_DO
        raise UserError(f'Cannot import the {what} "{name}": {reason}. {advice}') from error


def list_outside_code(saved: Mapping[str, Any]) -> list[str]:
    """List the `package.module:Name`s from outside selfsight that a saved recipe would import."""
    parts = [saved.get(key) for key in ("method", "backbone")]
    names = [str(part.get("name")) for part in parts if isinstance(part, Mapping)]
    return [name for name in names if ":" in name and not name.startswith("timm:")]


def locate_code(names: Iterable[str]) -> dict[str, str]:
    """Return the folder in which Python finds the package of each name, if it is in a file."""
    folders = {}
    for name in names:
        module = name.partition(":")[0]
        if file := getattr(importlib.import_module(module), "__file__", None):
            depth = module.count(".") + (Path(file).stem == "__init__")
            folders[name] = str(Path(file).resolve().parents[depth])
    return folders


def find_again(folders: Mapping[str, str]) -> None:
    """Make packages importable where `locate_code` found them, unless Python finds them already.

    The folders come from a recipe.json, which may be untrusted: call this only with consent.
    """
    for name, folder in folders.items():
        module = name.partition(":")[0]
        if not _extend_path(module, [str(Path.cwd()), folder]):
            raise UserError(
                f'Cannot import "{name}": there is no "{module.partition(".")[0]}" on the Python '
                f"path, in the current folder, or in {folder}, where it was when the run began. "
                f"{WHAT_TO_DO}"
            )


def _extend_path(module: str, folders: Iterable[str]) -> bool:
    """Append the first folder that holds a package to the path, unless Python finds it already.

    It stays there, as the folder of a script does: the code may import from it later.
    """
    package = module.partition(".")[0]
    if not package:
        return True  # not a name: the import says so
    if package in sys.modules or importlib.util.find_spec(package) is not None:
        return True
    for folder in folders:
        if PathFinder.find_spec(package, [folder]) is not None:
            sys.path.append(folder)
            return True
    return False


def _advise(name: str) -> str:
    if name.startswith("__main__:"):
        return (
            "It was defined in a script or a notebook. Move it to a module of its own, and write "
            "package.module:Name in recipe.json."
        )
    return "Write it as package.module:Name, and correct the module if it raised this error."
