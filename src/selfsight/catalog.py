"""What exists: methods and recipes, for people and for programs."""

import inspect
import re
from dataclasses import fields, is_dataclass
from typing import Any

from rich.console import Console

from selfsight.console import build_table
from selfsight.methods import MethodConfig
from selfsight.recipe import NAMED, method_config, method_name
from selfsight.recipes import RECIPES, recipe

Row = dict[str, Any]

IN_JSON_ONLY = ("summary", "backbone", "batch_size")  # a screen is not wide enough for all


def methods() -> list[Row]:
    """A row for each method, and for the baselines after them: paper and recipes."""
    found = []
    for name, config in NAMED.items():
        module = inspect.getmodule(config)
        title = (module.__doc__ or "").strip().split("\n")[0].rstrip(".,")
        named = [r for r in RECIPES if r.startswith(f"{name}.")]
        found.append(
            {"name": name, "paper": title, "labels": config.needs_labels, "recipes": named}
        )
    return found


def recipes(method: str | None = None) -> list[Row]:
    """A row for each recipe, or each of one method: what it runs, the published number and ours."""
    wanted = method_config(method) if method else MethodConfig
    found = []
    for name, function in RECIPES.items():
        made, text = function(), inspect.getdoc(function) or ""
        if not isinstance(made.method, wanted):
            continue
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
    shown = [{k: _brief(v) for k, v in row.items() if k not in IN_JSON_ONLY} for row in found]
    Console().print(build_table(shown))


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
        more = f" and {len(value) - 5} more" if len(value) > 6 else ""
        return ", ".join(str(v) for v in (value[:5] if more else value)) + more
    return value
