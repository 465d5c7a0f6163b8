"""Recipes that a person picks by name, `METHOD.FUNCTION`: one file per method.

The first sentence of a recipe's docstring names its setting. The line `Reference:` gives the
published number with its source; `Ours:` gives the number that we measured, with its commit.
Cells of a paper's table are arms of a study instead (selfsight.studies).
"""

import importlib
import inspect
from collections.abc import Callable
from types import ModuleType

from selfsight.methods import BASELINES, METHODS
from selfsight.recipe import Recipe

FILES: dict[str, ModuleType] = {
    name: importlib.import_module(f"{__name__}.{name}") for name in sorted(METHODS | BASELINES)
}


def _public_functions(module: ModuleType) -> dict[str, Callable[[], Recipe]]:
    return {
        name: function
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not name.startswith("_")
    }


RECIPES: dict[str, Callable[[], Recipe]] = {
    f"{file}.{name}": function
    for file, module in FILES.items()
    for name, function in _public_functions(module).items()
}
