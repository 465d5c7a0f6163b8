"""Print methods, recipes and studies for people, in tables that fit the terminal."""

import inspect
import re
from collections.abc import Iterator
from itertools import groupby

from selfsight.catalog import Row, find_paper, list_changed_flags, list_flags
from selfsight.errors import count_noun
from selfsight.recipes import RECIPES
from selfsight.studies import ARMS, STUDIES, Arm, Study
from selfsight.studies.ledger import read_ledger
from selfsight.studies.result_tables import NOT_RUN, list_judgments, list_results
from selfsight.terminal.console import (
    build_table,
    fit_line,
    format_setting,
    open_console,
    terminal_width,
    wrap,
)

NARROW = 78  # columns that a line of the tables needs


def print_table(rows: list[Row]) -> None:
    """Print rows as a table."""
    lines = [
        {k: ", ".join(map(str, v)) if isinstance(v, list | tuple) else v for k, v in row.items()}
        for row in rows
    ]
    open_console().print(build_table(lines))


def print_methods(rows: list[Row]) -> None:
    """Print one line per method."""
    width = terminal_width()
    for row in rows:
        count = len(row["recipes"])
        start = f"{row['name']:13} {count:2} {'recipe ' if count == 1 else 'recipes'}  "
        _print_wrapped(f"{start}{row['paper']}", indent=len(start) if width >= NARROW else 4)


def print_recipes(rows: list[Row]) -> None:
    """Print one line per recipe, grouped by method and data set; two where columns are few."""
    is_narrow = terminal_width() < NARROW
    if not is_narrow:
        print(f"{'data':11} {'recipe':38} epochs batch published")
    for method, group in groupby(rows, key=lambda row: row["method"]):
        print()
        _print_wrapped(f"{method}: {find_paper(method)}", indent=4)
        previous = None
        for row in group:
            data = row["data"] if row["data"] != previous else ""
            previous = row["data"]
            number = _published_number(row["reference"])
            if is_narrow:
                published = "" if number == "-" else f", published {number}"
                sizes = f"{row['epochs']} epochs, batch {row['batch_size']}{published}"
                print(row["name"], f"    {sizes}", sep="\n")
            else:
                sizes = f"{row['epochs']:6} {row['batch_size']:5}"
                print(f"{data:11} {row['name']:38} {sizes} {number}")
    print()
    _print_wrapped(
        "* at another length, batch size or loss: `selfsight recipes NAME` says which, and lists "
        "every flag. `selfsight studies` lists the papers' tables."
    )


def print_flags(name: str) -> None:
    """Print a recipe's summary and published number, then one line per flag."""
    rows = list_flags(name)
    if name in ARMS:
        _print_wrapped(f"{ARMS[name].recipe}: {ARMS[name].reference}")
        print()
    elif name in RECIPES:
        _print_docstring(inspect.getdoc(RECIPES[name]) or "")
        print()
    width = max(len(row["flag"]) for row in rows)
    for row in rows:
        flag, value = row["flag"], format_setting(row["value"])
        if isinstance(row["value"], bool):  # a switch, as it is typed
            *parents, last = flag.removeprefix("--").split(".")
            flag = "--" + ".".join([*parents, last if row["value"] else f"no-{last}"])
            value = ""
        lines = fit_line(f"{flag:{width}} ", [value], terminal_width())
        print(*(line.rstrip() for line in lines), sep="\n")


def print_studies(rows: list[Row]) -> None:
    """Print each study with its number of arms, how many have a published number, and the paper."""
    indent = 40 if terminal_width() >= NARROW else 4
    print(f"{'study':24} arms published paper")
    for row in rows:
        _print_wrapped(
            f"{row['name']:24} {row['arms']:4} {row['published']:9} {row['paper']}", indent=indent
        )
        for scale, done in row["done"].items():
            if done["runs"]:
                runs = count_noun(done["runs"], "run")
                arms = f"{done['arms']} of {done['of']} arms trained, {runs}"
                _print_wrapped(f"{'':{indent}}{scale}: {arms}", indent=indent)
    print()
    _print_wrapped(
        "`selfsight studies NAME` lists the arms of one study and our results, `selfsight study "
        "NAME` trains the missing ones."
    )


def print_study(name: str) -> None:
    """Print a study's claim, and its arms with the published numbers."""
    study = STUDIES[name]
    for title, text in (("", study.paper), ("Claim: ", study.claim), ("Judge: ", study.judged_by)):
        _print_wrapped(f"{title}{text}", indent=7)
    small = (study.arms_at("cifar10") or study.arms)[0]
    print(f"Train: selfsight study {name} --scale {small.scale} --arms {small.name}")
    _print_wrapped(
        f"`selfsight pretrain DATA --recipe {name}.ARM` trains outside the ledger.", indent=7
    )
    print()
    width = max(len(arm.name) for arm in study.arms)
    indent = width + 13 if terminal_width() >= NARROW else 4
    print(
        *fit_line(f"  {'arm':{width}}", [" published changed settings"], terminal_width()), sep="\n"
    )
    notes: list[str] = []
    for recipe, group in groupby(study.arms, key=lambda arm: arm.recipe):
        arms = [(arm, _changed_settings(arm)) for arm in group]
        shared = [text for text in arms[0][1] if all(text in changed for _, changed in arms)]
        shared = shared if len(arms) > 1 else []
        _print_words("", [recipe, *shared], indent=4)
        for arm, changed in arms:
            note = arm.source if arm.published is None else f"{arm.metric}: {arm.source}"
            if note not in notes:
                notes.append(note)
            number = "-" if arm.published is None else str(arm.published)
            start = f"  {arm.name:{width}} {number:>4} [{notes.index(note) + 1}] "
            _print_words(start, [t for t in changed if t not in shared], indent=indent)
    print()
    for index, note in enumerate(notes, 1):
        _print_wrapped(f"[{index}] {note}", indent=4)
    _print_results(study)


def _print_results(study: Study) -> None:
    """Print our results of a study, and the verdict on each claim that can be judged."""
    entries = read_ledger()
    for scale in study.scales:
        rows = [r for r in list_results(study, scale, entries) if r["linear"] != NOT_RUN]
        total = len(study.arms_at(scale))
        if scale == "small" and not rows:
            continue
        if rows:
            print(f"\nOurs on {scale}, {len(rows)} of {total} arms:")
            width = max(len(row["arm"]) for row in rows)
            if terminal_width() >= NARROW:
                print(f"  {'arm':{width}} seeds  {'kNN k=200':18} linear")
            for row in rows:
                start, knn, linear = f"  {row['arm']:{width}}", row["knn_200"], row["linear"]
                if terminal_width() >= NARROW:
                    print(f"{start} {row['seeds']:5}  {knn:18} {linear}")
                else:
                    text = f"seeds {row['seeds']}, kNN k=200 {knn}, linear {linear}"
                    print(start.rstrip(), *wrap(text, terminal_width(), indent=4), sep="\n")
        judged = list_judgments(study, scale, entries)
        if judged and not rows:
            print(f"\nOurs on {scale}, none of {total} arms:")
        for row in judged:
            note = f"({row['note']})" if row["note"] else ""
            text = f"{row['verdict']}: {row['claim']} {row['difference']} {note}".rstrip()
            print(*wrap(text, terminal_width(), indent=4, first=2), sep="\n")


def _changed_settings(arm: Arm) -> list[str]:
    """Abbreviate the changed flags: `queue_size=16 optim.lr=0.8`."""
    return [
        flag.removeprefix("--").removeprefix("method.").replace("-", "_").replace(" ", "=", 1)
        if flag.startswith("--")
        else flag
        for flag in list_changed_flags(arm)
    ]


def _print_words(start: str, words: list[str], *, indent: int) -> None:
    """Print words after `start`, breaking lines between words only."""
    line = start
    for word in words:
        if len(line) + 1 + len(word) > terminal_width():
            print(line.rstrip())
            line = " " * (indent - 1)
        line = f"{line} {word}" if line else word
    print(line.rstrip())


def _print_wrapped(text: str, *, indent: int = 0) -> None:
    """Print text wrapped, with all lines but the first indented."""
    print(*wrap(text, terminal_width(), indent=indent, first=0), sep="\n")


def _print_docstring(text: str) -> None:
    """Print a docstring, wrapped by paragraph; commands stay on one line, to be copied."""
    for line in _join_paragraphs(text):
        is_command = "selfsight pretrain" in line or "torchrun" in line
        print(line if is_command else "\n".join(wrap(line, terminal_width(), indent=0)))


def _join_paragraphs(text: str) -> Iterator[str]:
    """Join the lines of each paragraph; a title such as `Run:` begins one."""
    paragraph: list[str] = []
    for line in [*text.splitlines(), ""]:
        if paragraph and (not line.strip() or re.match(r"[A-Z]\w+:", line)):
            yield " ".join(paragraph)
            paragraph = []
        if line.strip():
            paragraph.append(line.strip())
        else:
            yield ""


def _published_number(reference: str | None) -> str:
    """Extract the published number and its metric, with a star if its setting differs."""
    pattern = r"([\d.]+) % (linear|kNN|top-1)(?: top-1)?(?: \(k = \d+\))?( \(|;|)"
    match = re.match(pattern, reference or "")
    return f"{match[1]} {match[2]}{'' if match[3] else '*'}" if match else "-"
