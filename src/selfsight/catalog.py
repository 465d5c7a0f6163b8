"""List methods, recipes and studies, for people and for programs; build a recipe by its name."""

import inspect
import re
import sys
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass
from typing import Any

from selfsight.check_settings import field_types
from selfsight.errors import UserError, suggest
from selfsight.evals.protocol_flags import FlagSettings
from selfsight.methods import MethodConfig
from selfsight.options.encoder_options import ExportTarget
from selfsight.options.parse_flags import list_settings
from selfsight.recipe import ALL_METHODS, Recipe, method_name
from selfsight.recipes import RECIPES
from selfsight.recipes.recipe_file import is_recipe_file, read_recipe
from selfsight.studies import ARMS, STUDIES, Arm, Study
from selfsight.studies.ledger import Entry, read_ledger
from selfsight.studies.result_tables import count_done, list_results
from selfsight.terminal.console import format_setting

Row = dict[str, Any]

DATA_SETS = ("imagenet", "imagenet100", "stl10", "imagenette", "cifar10", "shapes")


def build_recipe(name: str) -> Recipe:
    """Build the recipe `METHOD.NAME`, the arm of a study `STUDY.ARM`, or the recipe of a file.

    >>> selfsight.build_recipe("simclr.shapes").backbone.name
    'resnet8_narrow'
    """
    if is_recipe_file(name):
        return read_recipe(name)
    if name in RECIPES:
        return RECIPES[name]()
    if name in ARMS:
        return ARMS[name].build()
    raise UserError(
        f'There is no recipe "{name}".{suggest(name, [*RECIPES, *ARMS])} '
        "`selfsight recipes` lists the recipes, `selfsight studies NAME` the arms of a study."
    )


def list_methods(only: str = "") -> list[Row]:
    """List each method and baseline, or one of them, with its paper and recipes."""
    if only and only not in ALL_METHODS:
        raise UserError(
            f'There is no method "{only}".{suggest(only, ALL_METHODS)} '
            f"Known: {', '.join(ALL_METHODS)}."
        )
    return [
        {
            "name": name,
            "paper": find_paper(name),
            "labels": config.needs_labels,
            "recipes": [recipe for recipe in RECIPES if recipe.startswith(f"{name}.")],
        }
        for name, config in ALL_METHODS.items()
        if only in ("", name)
    ]


def list_names() -> dict[str, list[str]]:
    """List the names that may follow a flag or a command, for completion by a shell."""
    recipes = list(RECIPES)
    return {
        "--method": list(ALL_METHODS),
        "--recipe": recipes,
        "methods": list(ALL_METHODS),
        "recipes": recipes,
        "bench": recipes,
        "study": list(STUDIES),
        "studies": list(STUDIES),
        "--device": ["auto", "cpu", "cuda"],
        "--to": list(typing.get_args(ExportTarget)),
    }


def list_recipes(word: str = "") -> list[Row]:
    """List the recipes that have a word in their name, by method, data set and epochs."""
    listed = []
    for name, function in RECIPES.items():
        if word.lower() not in name:
            continue
        recipe, text = function(), inspect.getdoc(function) or ""
        listed.append(
            {
                "name": name,
                "method": method_name(recipe.method),
                "data": name.split(".")[1].split("_")[0],
                "backbone": recipe.backbone.name,
                "epochs": recipe.epochs,
                "batch_size": recipe.batch_size,
                "summary": text.split("\n")[0],
                "reference": _paragraph(text, "Reference"),
                "ours": _paragraph(text, "Ours"),
            }
        )
    if not listed:
        raise UserError(
            f'No recipe has "{word}" in its name.{suggest(word, ALL_METHODS)} '
            "`selfsight recipes` lists them all."
        )
    methods = list(ALL_METHODS)
    return sorted(
        listed,
        key=lambda row: (
            methods.index(row["method"]),
            DATA_SETS.index(row["data"]),
            row["epochs"],
        ),
    )


def list_flags(name: str) -> list[Row]:
    """List each setting of a recipe with the flag that changes it."""
    return [{"flag": flag, "value": value} for flag, value in list_settings(build_recipe(name))]


def count_values(flag: str) -> int:
    """Return how many words a setting takes on the command line, as one, two, or any number.

    A switch such as --compile takes none; a setting that does not exist counts as one.
    """
    names = flag.removeprefix("--").removeprefix("set.").replace("-", "_").split(".")
    roots = (Recipe, *typing.get_args(FlagSettings))
    return max((_count(t) for root in roots for t in _types_at(root, names)), default=1)


def _types_at(declared: Any, names: Sequence[str]) -> Iterator[Any]:
    """Yield the types that a setting has, below this one, in any method."""
    if not names:
        yield declared
    elif declared is MethodConfig:
        for config in ALL_METHODS.values():
            yield from _types_at(config, names)
    elif is_dataclass(declared):
        hints = field_types(declared)
        name = names[0] if names[0] in hints else names[0].removeprefix("no_")
        if name in hints:
            yield from _types_at(hints[name], names[1:])
    elif typing.get_origin(declared) is tuple and names[0].isdecimal():
        yield from _types_at(typing.get_args(declared)[0], names[1:])
    else:
        for option in typing.get_args(declared):
            yield from _types_at(option, names) if is_dataclass(option) else ()


def _count(declared: Any) -> int:
    origin, args = typing.get_origin(declared), typing.get_args(declared)
    if origin in (typing.Union, types.UnionType):
        return max(map(_count, args))
    if origin is tuple:
        return sys.maxsize // 2 if args[-1] is Ellipsis else sum(map(_count, args))
    return 0 if declared is bool else 1


def list_studies(word: str = "") -> list[Row]:
    """List the studies with a word in their name, paper, claim or arms, and their trained arms."""
    entries = read_ledger()
    listed = [
        {
            "name": name,
            "paper": study.paper,
            "arms": len(study.arms),
            "published": sum(arm.published is not None for arm in study.arms),
            "done": _list_done(study, entries),
            "claim": study.claim,
            "judged_by": study.judged_by,
        }
        for name, study in STUDIES.items()
        if word.lower() in f"{name} {study.paper} {study.claim}".lower()
        or any(word.lower() in arm.name.split("_") for arm in study.arms)
    ]
    if not listed:
        raise UserError(
            f'There is no study "{word}".{suggest(word, STUDIES)} '
            "`selfsight studies` lists them all."
        )
    return listed


def list_arms(name: str) -> list[Row]:
    """List the arms of a study: changes to the recipe, published numbers and ours."""
    study, entries = STUDIES[name], read_ledger()
    ours = {
        (scale, row["arm"]): row
        for scale in study.scales
        for row in list_results(study, scale, entries)
    }
    return [
        {
            "name": f"{name}.{arm.name}",
            "recipe": arm.recipe,
            "settings": list_changed_flags(arm),
            "scale": arm.scale,
            "published": arm.published,
            "metric": arm.metric,
            "source": arm.source,
            **{m: ours[arm.scale, arm.name][m] for m in ("seeds", "knn", "knn_200", "linear")},
        }
        for arm in (*study.arms, *study.arms_at("small"))
    ]


def _list_done(study: Study, entries: Sequence[Entry]) -> dict[str, dict[str, int]]:
    """For each data set of a study, how many arms were trained, of how many, in how many runs."""
    counts = {scale: count_done(study, scale, entries) for scale in study.scales}
    return {
        scale: {"arms": done, "of": total, "runs": runs}
        for scale, (done, total, runs) in counts.items()
    }


def find_paper(method: str) -> str:
    """Return the paper in the first line of a method file, up to its arXiv number."""
    module = inspect.getmodule(ALL_METHODS[method])
    title = ((module and module.__doc__) or "").strip().split("\n")[0]
    return title[: title.find(")") + 1] or title


def _paragraph(text: str, title: str) -> str | None:
    """Return the text after `title:` in a docstring, up to the next title or blank line."""
    match = re.search(rf"^{title}: (.*?)(?=\n\n|\n\w+: |\Z)", text, re.DOTALL | re.MULTILINE)
    return " ".join(match[1].split()).rstrip(".") if match else None


def list_changed_flags(arm: Arm) -> list[str]:
    """List the flags that turn the base recipe into the arm; views are only counted."""
    recipe, changed = RECIPES[arm.recipe](), arm.build()
    before = dict(list_settings(recipe))
    flags = [
        f"{flag} {format_setting(value)}"
        for flag, value in list_settings(changed)
        if before.get(flag, list_settings) != value and not flag.startswith("--views.")
    ]
    if recipe.views != changed.views:
        flags.append(f"({len(changed.views)} views)")
    return flags
