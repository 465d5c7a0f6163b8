"""The help of the command line: all commands on a page, and the text above the flags of one."""

import inspect
from collections.abc import Callable
from typing import Any

from selfsight.terminal.console import fit_line, terminal_width, wrap
from selfsight.version import __version__

TITLE = (
    f"selfsight {__version__}: learn image encoders from unlabeled images, and prove how good they "
    "are."
)
COMMAND_LINES = {
    "pretrain DATA": "train an encoder on images",
    "resume RUN": "resume a run that stopped",
    "replay RUN": "find where a step was not finite",
    "evaluate RUN...": "kNN, linear, few labels, fine-tuning, ...",
    "export RUN --to NAME": "write the encoder for timm, ONNX, ...",
    "embed RUN DATA": "a vector for every image",
    "search RUN DATA QUERY": "similar images, near-duplicates, outliers",
    "explore RUN DATA": "a map of all images; save groups as lists",
    "classify RUN": "a classifier from labels; predictions",
    "adapt DATA --init NAME": "use an encoder unchanged, or train it?",
    "report RUN": "one HTML page: curves, verdict, neighbors",
    "doctor DATA": "summarize the data, show its recipe",
    "bench": "how fast training is, and what limits it",
    "methods": "list the methods; BibTeX of a paper",
    "recipes": "list the recipes: named settings",
    "studies": "the papers' tables, and what was trained",
    "study NAME...": "train the missing arms of studies",
    "reproduce RUN|STUDY.ARM": "train a run or an arm again, and compare",
    "conformance MODULE:CONFIG": "check your own method",
    "completion SHELL": "tab completion for a shell",
    "COMMAND --help": "the options of a command",
}
EVERYWHERE = {
    "--quiet": "print results and errors only",
    "--verbose": "print every record, skipped file, traceback",
    "--json": "print results as JSON (not pretrain, resume, completion)",
}
EXIT_STATUS = {
    "0": "done",
    "1": "a failure, or a check that did not pass",
    "2": "a mistake in the command: nothing was done",
    "128 + n": "stopped by signal n: 130 is Ctrl-C",
}
FOOTER = "With any command: --quiet prints results and errors only, --verbose everything."


def print_help() -> None:
    """Print all commands, the flags that all of them have, and what an exit status means."""
    width = terminal_width()
    print(*wrap(TITLE, width), sep="\n")
    for title, lines in (
        ("", {f"selfsight {usage}": text for usage, text in COMMAND_LINES.items()}),
        ("With any command:", EVERYWHERE),
        ("Exit status:", EXIT_STATUS),
    ):
        print(f"\n{title}" if title else "")
        longest = max(map(len, lines))
        for head, text in lines.items():
            print(*fit_line(f"  {head:{longest}} ", [f" {text}"], width), sep="\n")


def describe_command(command: Callable[..., Any]) -> str:
    """The docstring of a command up to its arguments, and the flags of all commands."""
    text = (inspect.getdoc(command) or "").split("\nArgs:")[0]
    return f"{text.strip()}\n\n{FOOTER}"
