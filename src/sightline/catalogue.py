"""What exists: methods and recipes, for people and for programs."""

import inspect
import re
from dataclasses import fields, is_dataclass
from typing import Any

from rich.console import Console

from sightline.methods import METHODS
from sightline.recipe import method_name
from sightline.recipes import RECIPES, recipe
from sightline.train.show import rows

Row = dict[str, Any]


def methods() -> list[Row]:
    """A row for each method: its paper and its recipes."""
    found = []
    for name, config in METHODS.items():
        module = inspect.getmodule(config)
        title = (module.__doc__ or "").strip().split("\n")[0].rstrip(".,")
        named = [r for r in RECIPES if r.startswith(f"{name}.")]
        found.append({"name": name, "paper": title, "recipes": named})
    return found


def recipes() -> list[Row]:
    """A row for each recipe: what it runs, the published number and ours."""
    found = []
    for name, function in RECIPES.items():
        made, text = function(), inspect.getdoc(function) or ""
        found.append(
            {
                "name": name,
                "method": method_name(made.method),
                "data": name.split(".")[1].split("_")[0],
                "backbone": made.backbone.name,
                "epochs": made.epochs,
                "batch_size": made.batch_size,
                "summary": text.split("\n")[0],
                "reference": _part(text, "Reference"),
                "ours": _part(text, "Ours"),
            }
        )
    return found


def flags(name: str) -> list[Row]:
    """A row for each setting of a recipe, with the flag that changes it."""
    return list(_settings(recipe(name), ""))


def show(found: list[Row]) -> None:
    """Print rows as a table."""
    Console().print(rows([{k: _brief(v) for k, v in row.items()} for row in found]))


def _settings(value: Any, path: str) -> Any:
    for field in fields(value):
        item, flag = getattr(value, field.name), f"{path}{field.name}".replace("_", "-")
        if is_dataclass(item):
            yield from _settings(item, f"{flag}.")
        elif isinstance(item, tuple) and item and is_dataclass(item[0]):
            for number, part in enumerate(item):
                yield from _settings(part, f"{flag}.{number}.")
        else:
            yield {"flag": f"--{flag}", "value": item}


def _part(text: str, word: str) -> str | None:
    found = re.search(rf"^{word}: (.*?)(?=\n\n|\n\w+: |\Z)", text, re.DOTALL | re.MULTILINE)
    return " ".join(found[1].split()).rstrip(".") if found else None


def _brief(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return ", ".join(str(v) for v in value)
    return value
