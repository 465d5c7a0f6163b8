"""Split a command line into options of the command and settings of a recipe."""

import inspect
import itertools
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import Any

from tyro.conf import Suppress

from selfsight.check_settings import LONGEST_TEXT
from selfsight.errors import UserError
from selfsight.options.parse_flags import refuse_flag

HIDDEN = set(typing.get_args(Suppress[None])[1:])  # type: ignore[misc] # fields that are no flags


def take_verbosity(args: Sequence[str]) -> tuple[list[str], str | None]:
    """Remove --quiet and --verbose, which every command has, from a command line; the last wins."""
    end = args.index("--") if "--" in args else len(args)
    levels = [word for word in args[:end] if word in ("--quiet", "--verbose")]
    words = [word for word in args[:end] if word not in levels]
    return [*words, *args[end:]], levels[-1].removeprefix("--") if levels else None


def default_options(command: Callable[..., Any]) -> Any:
    """The default of a command's options, or None if it has no options class."""
    parameters = inspect.signature(command).parameters
    return parameters["options"].default if "options" in parameters else None


def list_flags(command: Callable[..., Any]) -> list[str]:
    """List the flags of a command."""
    hints = typing.get_type_hints(command, include_extras=True)
    parameters = inspect.signature(command).parameters.values()
    names = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "options"]
    options = default_options(command)
    if options is not None:
        hints |= typing.get_type_hints(type(options), include_extras=True)
        names += [field.name for field in fields(options)]
    flags = [_flag_name(name, hints[name]) for name in names]
    return [f"--{flag.replace('_', '-')}" for flag in flags if flag]


def _flag_name(name: str, hint: Any) -> str | None:
    """The flag of a parameter, which its type may rename; None if it is not on the command line."""
    about = getattr(hint, "__metadata__", ())
    if set(about) & HIDDEN:
        return None
    return next((arg.name for arg in about if getattr(arg, "name", None)), name)


def split_settings(
    args: list[str], names: Iterable[str], *, nested_only: bool = False
) -> tuple[list[str], list[str]]:
    """Split arguments into those that a command parses and settings of a recipe or protocol.

    `names` are the options of the command. With `nested_only`, as in evaluate, settings have a
    dot, and the command itself reports any other flag as a typo. A setting takes as many words as
    it has values; words after them are DATA or RUN, and so are all words after a lone `--`.
    """
    known_flags = {f"--{name.replace('_', '-')}" for name in names}
    positional: list[str] = []
    if "--" in args:
        positional = [_protect(word) for word in args[args.index("--") + 1 :]]
        args = args[: args.index("--")]
    parsed: list[str] = []
    settings: list[list[str]] = []
    into, last_flag = parsed, ""
    for arg in args:
        if last_flag and not arg.strip():
            raise UserError(f"{last_flag} is followed by an empty word. Give a value or remove it.")
        if arg.startswith("--"):
            last_flag = arg[:80]
            flag = arg.split("=")[0].replace("_", "-").replace("--no-", "--")
            if not flag[2:3].isalpha():
                raise UserError(
                    f'"{arg}" is where a flag is expected, and there is no such flag. If it is a '
                    f"value, such as a class, write --classes={arg}, or a file that lists them."
                )
            is_known = flag in known_flags or flag == "--help"
            if is_known or (nested_only and "." not in flag):
                into = parsed
            else:
                settings.append(into := [])
        elif arg == "-h":
            into = parsed
        into.append(arg)
    if any(len(words) > 1 for words in settings) and not {"-h", "--help"} & set(args):
        from selfsight.catalog import count_values

        for words in settings:
            taken = 1 + (0 if "=" in words[0] else count_values(words[0]))
            positional[:0] = words[taken:]
            del words[taken:]
    for flag, *values in settings:
        longest = max(map(len, (flag, *values)))
        if longest > LONGEST_TEXT:
            raise UserError(
                f"{flag[:80]} has a value of {longest:,} characters; {LONGEST_TEXT:,} are allowed."
            )
    leading = list(itertools.takewhile(lambda word: not word.startswith("-"), parsed))
    parsed = [*leading, *positional, *parsed[len(leading) :]]
    return parsed, [word for words in settings for word in words]


def check_settings_exist(words: list[str], name: str, known: list[str]) -> None:
    """Raise a UserError for a flag without a dot that no recipe has, before an image is read."""
    for word in words:
        flag = word.split("=")[0].replace("_", "-").replace("--no-", "--")
        if not word.startswith("--") or "." in flag:
            continue
        from selfsight.recipe import Recipe

        names = () if name == "conformance" else [field.name for field in fields(Recipe)]
        of_recipe = [f"--{setting.replace('_', '-')}" for setting in names]
        if flag not in of_recipe:
            raise refuse_flag(word, f"selfsight {name}", [*known, *of_recipe])


def _protect(word: str) -> str:
    """Write a name that begins like a flag as a path, so that it is not parsed as one."""
    return f"./{word}" if word.startswith("-") else word
