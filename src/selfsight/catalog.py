"""List methods, recipes and studies, for people and for programs; build a recipe by its name."""

import inspect
import re
import sys
import textwrap
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass
from itertools import groupby
from typing import Any

from selfsight.console import build_table, format_setting, open_console
from selfsight.errors import UserError, suggest
from selfsight.evals.protocols import FlagSettings
from selfsight.flags import list_settings
from selfsight.methods import MethodConfig
from selfsight.recipe import ALL_METHODS, Recipe, method_name
from selfsight.recipes import RECIPES
from selfsight.settings import field_types
from selfsight.studies import ARMS, STUDIES, Arm, Study
from selfsight.studies.ledger import Entry, read_ledger
from selfsight.studies.tables import NOT_RUN, count_done, list_judgments, list_results

Row = dict[str, Any]

WIDTH = 80  # columns of a terminal
DATA_SETS = ("imagenet", "imagenet100", "stl10", "imagenette", "cifar10", "shapes")


def build_recipe(name: str) -> Recipe:
    """Build the recipe called `METHOD.NAME`, or the arm of a study called `STUDY.ARM`."""
    if name in RECIPES:
        return RECIPES[name]()
    if name in ARMS:
        return ARMS[name].build()
    raise UserError(
        f'There is no recipe "{name}".{suggest(name, [*RECIPES, *ARMS])} '
        "`selfsight recipes` lists the recipes, `selfsight studies NAME` the arms of a study."
    )


def list_methods() -> list[Row]:
    """List each method and baseline with its paper and recipes."""
    return [
        {
            "name": name,
            "paper": _paper(name),
            "labels": config.needs_labels,
            "recipes": [recipe for recipe in RECIPES if recipe.startswith(f"{name}.")],
        }
        for name, config in ALL_METHODS.items()
    ]


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
    """List the studies that have a word in their name, paper or claim, and what was trained."""
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
    scales = {arm.scale for arm in study.arms}
    ours = {row["arm"]: row for scale in scales for row in list_results(study, scale, entries)}
    return [
        {
            "name": f"{name}.{arm.name}",
            "recipe": arm.recipe,
            "settings": _changed_flags(arm),
            "scale": arm.scale,
            "published": arm.published,
            "metric": arm.metric,
            "source": arm.source,
            "seeds": ours[arm.name]["seeds"],
            **{m: ours[arm.name][m] for m in ("knn", "knn_200", "linear")},
        }
        for arm in study.arms
    ]


def _list_done(study: Study, entries: Sequence[Entry]) -> dict[str, dict[str, int]]:
    """For each data set of a study, how many arms were trained, of how many, in how many runs."""
    scales = dict.fromkeys(arm.scale for arm in study.arms)
    counts = {scale: count_done(study, scale, entries) for scale in scales}
    return {
        scale: {"arms": done, "of": total, "runs": runs}
        for scale, (done, total, runs) in counts.items()
    }


def print_table(rows: list[Row]) -> None:
    """Print rows as a table."""
    lines = [
        {k: ", ".join(map(str, v)) if isinstance(v, list | tuple) else v for k, v in row.items()}
        for row in rows
    ]
    open_console().print(build_table(lines))


def print_methods(rows: list[Row]) -> None:
    """Print one line per method."""
    for row in rows:
        print(_shorten(f"{row['name']:13} {len(row['recipes']):2} recipes  {row['paper']}"))


def print_recipes(rows: list[Row]) -> None:
    """Print one line per recipe, grouped by method and data set."""
    print(f"{'data':11} {'recipe':38} epochs batch published")
    for method, group in groupby(rows, key=lambda row: row["method"]):
        print(_shorten(f"\n{method}: {_paper(method)}"))
        previous = None
        for row in group:
            data = row["data"] if row["data"] != previous else ""
            previous = row["data"]
            sizes = f"{row['epochs']:6} {row['batch_size']:5}"
            print(f"{data:11} {row['name']:38} {sizes} {_published_number(row['reference'])}")
    print("\n* at another length, batch size or loss: `selfsight recipes NAME` says which,")
    print("and lists every flag. `selfsight studies` lists the papers' tables.")


def print_flags(name: str) -> None:
    """Print a recipe's summary and published number, then one line per flag."""
    rows = list_flags(name)
    if name in ARMS:
        print(textwrap.fill(f"{ARMS[name].recipe}: {ARMS[name].reference}", WIDTH))
    else:
        print(inspect.getdoc(RECIPES[name]))
    width = max(len(row["flag"]) for row in rows)
    print()
    for row in rows:
        print(f"{row['flag']:{width}} {format_setting(row['value'])}")


def print_studies(rows: list[Row]) -> None:
    """Print each study with its number of arms, how many have a published number, and the paper."""
    print(f"{'study':24} arms published paper")
    for row in rows:
        line = f"{row['name']:24} {row['arms']:4} {row['published']:9} {row['paper']}"
        print(textwrap.fill(line, WIDTH, subsequent_indent=" " * 40))
        for scale, done in row["done"].items():
            if done["runs"]:
                arms = f"{done['arms']} of {done['of']} arms trained, {done['runs']} runs"
                print(f"{'':40}{scale}: {arms}")
    print("\n`selfsight studies NAME` lists the arms of one study and our results,")
    print("`selfsight study NAME` trains what is missing.")


def print_study(name: str) -> None:
    """Print a study's claim, and its arms with the published numbers."""
    study = STUDIES[name]
    for title, text in (("", study.paper), ("Claim: ", study.claim), ("Judge: ", study.judged_by)):
        print(textwrap.fill(f"{title}{text}", WIDTH, subsequent_indent="       "))
    print(f"Train: selfsight pretrain DATA --recipe {name}.{study.arms[0].name}\n")
    width = max(len(arm.name) for arm in study.arms)
    print(f"  {'arm':{width}} published changed settings")
    notes: list[str] = []
    for recipe, group in groupby(study.arms, key=lambda arm: arm.recipe):
        arms = [(arm, _changed_settings(arm)) for arm in group]
        shared = [text for text in arms[0][1] if all(text in changed for _, changed in arms)]
        shared = shared if len(arms) > 1 else []
        _print_wrapped("", [recipe, *shared], indent=4)
        for arm, changed in arms:
            note = arm.source if arm.published is None else f"{arm.metric}: {arm.source}"
            if note not in notes:
                notes.append(note)
            number = "-" if arm.published is None else str(arm.published)
            start = f"  {arm.name:{width}} {number:>4} [{notes.index(note) + 1}] "
            _print_wrapped(start, [t for t in changed if t not in shared], indent=width + 13)
    print()
    for index, note in enumerate(notes, 1):
        print(textwrap.fill(f"[{index}] {note}", WIDTH, subsequent_indent="    "))
    _print_results(study)


def _print_results(study: Study) -> None:
    """Print our results of a study, and the verdict on each claim that can be judged."""
    entries = read_ledger()
    for scale in dict.fromkeys(arm.scale for arm in study.arms):
        rows = [r for r in list_results(study, scale, entries) if r["linear"] != NOT_RUN]
        total = len(study.arms_at(scale))
        if rows:
            print(f"\nOurs on {scale}, {len(rows)} of {total} arms:")
            width = max(len(row["arm"]) for row in rows)
            print(f"  {'arm':{width}} seeds  {'kNN k=200':18} linear")
            for row in rows:
                print(
                    f"  {row['arm']:{width}} {row['seeds']:5}  {row['knn_200']:18} {row['linear']}"
                )
        for row in list_judgments(study, scale, entries):
            text = f"{row['verdict']}: {row['claim']} {row['difference']}".rstrip()
            print(textwrap.fill(text, WIDTH, initial_indent="  ", subsequent_indent="    "))


def _changed_settings(arm: Arm) -> list[str]:
    """Abbreviate the changed flags: `queue_size=16 optim.lr=0.8`."""
    return [
        flag.removeprefix("--").removeprefix("method.").replace("-", "_").replace(" ", "=", 1)
        if flag.startswith("--")
        else flag
        for flag in _changed_flags(arm)
    ]


def _print_wrapped(start: str, words: list[str], *, indent: int) -> None:
    """Print words after `start`, breaking lines between words only."""
    line = start
    for word in words:
        if len(line) + 1 + len(word) > WIDTH:
            print(line)
            line = " " * (indent - 1)
        line = f"{line} {word}" if line else word
    print(line)


def _published_number(reference: str | None) -> str:
    """Extract the published number and its metric, with a star if its setting differs."""
    pattern = r"([\d.]+) % (linear|kNN|top-1)(?: top-1)?(?: \(k = \d+\))?( \(|;|)"
    match = re.match(pattern, reference or "")
    return f"{match[1]} {match[2]}{'' if match[3] else '*'}" if match else "-"


def _paper(method: str) -> str:
    """Return the paper in the first line of a method file, up to its arXiv number."""
    module = inspect.getmodule(ALL_METHODS[method])
    title = ((module and module.__doc__) or "").strip().split("\n")[0]
    return title[: title.find(")") + 1] or title


def _paragraph(text: str, title: str) -> str | None:
    """Return the text after `title:` in a docstring, up to the next title or blank line."""
    match = re.search(rf"^{title}: (.*?)(?=\n\n|\n\w+: |\Z)", text, re.DOTALL | re.MULTILINE)
    return " ".join(match[1].split()).rstrip(".") if match else None


def _changed_flags(arm: Arm) -> list[str]:
    """List the flags that turn the arm's recipe into the arm; views are only counted."""
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


def _shorten(line: str) -> str:
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 3].rstrip(' ,')}..."
