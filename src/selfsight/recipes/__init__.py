"""Named recipes: a function for each published setting, called `file.function`.

A docstring's first sentence says what the recipe is; a line `Reference:` gives the published
number with its source, and `Ours:` the number that we measured, with its command.
"""

import inspect
from collections.abc import Callable
from types import ModuleType

from selfsight.errors import UserError, nearest
from selfsight.recipe import Recipe
from selfsight.recipes import (
    barlow_twins,
    byol,
    fast_moco,
    instdisc,
    jcl,
    moco,
    mocov3,
    msbreg,
    nnclr,
    simclr,
    simo,
    simsiam,
    supervised,
    swav,
    vicreg,
)

FILES: dict[str, ModuleType] = {
    "barlow_twins": barlow_twins,
    "byol": byol,
    "fast_moco": fast_moco,
    "instdisc": instdisc,
    "jcl": jcl,
    "moco": moco,
    "mocov3": mocov3,
    "msbreg": msbreg,
    "nnclr": nnclr,
    "simclr": simclr,
    "simo": simo,
    "simsiam": simsiam,
    "supervised": supervised,
    "swav": swav,
    "vicreg": vicreg,
}


def named(module: ModuleType) -> dict[str, Callable[[], Recipe]]:
    """The recipes of a file: its public functions, and the tables it makes in a loop (GRID)."""
    written = {
        name: function
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not name.startswith("_")
    }
    return written | getattr(module, "GRID", {})


RECIPES: dict[str, Callable[[], Recipe]] = {
    f"{file}.{name}": function
    for file, module in FILES.items()
    for name, function in named(module).items()
}


def recipe(name: str) -> Recipe:
    """The recipe called `file.function`."""
    if name not in RECIPES:
        raise UserError(
            f'There is no recipe "{name}".{nearest(name, RECIPES)} `selfsight recipes` lists them.'
        )
    return RECIPES[name]()
