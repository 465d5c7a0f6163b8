"""Named recipes: a function for each published setting, called `file.function`.

A docstring's first sentence says what the recipe is; a line `Reference:` gives the published
number with its source, and `Ours:` the number that we measured, with its command.
"""

import inspect
from collections.abc import Callable
from types import ModuleType

from sightline.errors import UserError, nearest
from sightline.recipe import Recipe
from sightline.recipes import byol, moco, mocov3, simclr, simsiam

FILES: dict[str, ModuleType] = {
    "byol": byol,
    "moco": moco,
    "mocov3": mocov3,
    "simclr": simclr,
    "simsiam": simsiam,
}

RECIPES: dict[str, Callable[[], Recipe]] = {
    f"{file}.{name}": function
    for file, module in FILES.items()
    for name, function in inspect.getmembers(module, inspect.isfunction)
    if function.__module__ == module.__name__ and not name.startswith("_")
}


def recipe(name: str) -> Recipe:
    """The recipe called `file.function`."""
    if name not in RECIPES:
        raise UserError(
            f'There is no recipe "{name}".{nearest(name, RECIPES)} `sightline recipes` lists them.'
        )
    return RECIPES[name]()
