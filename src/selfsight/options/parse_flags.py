"""Parse the flags of the command line; an error says in one sentence what is wrong."""

import contextlib
import functools
import io
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

import tyro

# Not a public part of tyro: without it, its own messages are printed, in boxes.
from tyro import _errors as tyro_errors

from selfsight.check_settings import check_setting
from selfsight.errors import UserError, escape, list_first, suggest
from selfsight.terminal.console import terminal_width, wrap

Options = TypeVar("Options", bound=Any)


def parse_flags(
    target: Callable[..., Any],
    *,
    known: Iterable[str] = (),
    typed: Sequence[str] = (),
    **options: Any,
) -> Any:
    """Call what tyro builds from a command line; a word that it rejects raises a UserError.

    `known` are flags to suggest in addition to those of the default settings. `typed` are the
    words as the user typed them, if settings were removed from `args`.
    """
    default = options.get("default")
    known = [*known, *(flag for flag, _ in list_settings(default))] if default else list(known)
    words = list(options.get("args", ()))
    refuse = functools.partial(_refuse, words=words, known=known, typed=list(typed) or words)
    wants_help = {"-h", "--help"} & set(options.get("args", ()))
    shown, said = io.StringIO() if wants_help else sys.stdout, io.StringIO()
    try:
        with (
            tyro_errors.on_parse_error(refuse),
            contextlib.redirect_stdout(shown),
            contextlib.redirect_stderr(said),
        ):
            return tyro.cli(target, **options)
    finally:
        if isinstance(shown, io.StringIO):
            _print_help(shown.getvalue())
        # Events that `_refuse` does not know: the message repeats words of the command line.
        for line in said.getvalue().split("\n")[:-1]:
            print(escape(line), file=sys.stderr)


def _print_help(text: str) -> None:
    """Print help wrapped to the terminal; tyro's own lines break where those of the source do."""
    lines, width = [line.rstrip() for line in text.splitlines()], terminal_width()
    indents = Counter(len(line) - len(line.lstrip()) for line in lines if line.startswith("    "))
    column = max(indents, key=indents.__getitem__, default=width)  # where the text of flags begins
    rows: list[tuple[str, str]] = []  # a flag, or nothing, and its text
    for line in lines:
        flag, words = rows[-1] if rows else ("", "")
        if line.startswith(" " * column) or (line[:1].strip() and words and not flag):
            rows[-1] = (flag, f"{words} {line.strip()}".strip())
        elif line.startswith("  ") and line[:column].endswith("  "):
            rows.append((line[:column], line[column:]))
        else:
            rows.append((line, "") if line.startswith(" ") else ("", line))
    for flag, words in rows:
        wrapped = wrap(words, width - 1, indent=column if flag else 0)
        if flag.endswith(" "):
            wrapped[0] = flag + wrapped[0][column:]
        elif flag or not words:
            wrapped.insert(0, flag)
        print(*wrapped, sep="\n")


def list_settings(config: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """List the settings of nested dataclasses as (flag, value)."""
    for field in fields(config):
        value, name = getattr(config, field.name), f"{path}{field.name}".replace("_", "-")
        if is_dataclass(value):
            yield from list_settings(value, f"{name}.")
        elif isinstance(value, tuple) and value and is_dataclass(value[0]):
            for index, item in enumerate(value):
                yield from list_settings(item, f"{name}.{index}.")
        else:
            yield f"--{name}", value


def change_options(options: Options, changes: Mapping[str, Any]) -> Options:
    """Replace options by Python keywords; a keyword such as "optim.lr" is a setting.

    Settings become flags, so that flags and keywords are checked in the same way.
    """
    known = [field.name for field in fields(options)]
    given = {name: value for name, value in changes.items() if name in known}
    check_setting("settings", given.get("settings", ()), Sequence[str])
    flags: list[str] = list(given.pop("settings", getattr(options, "settings", ())))
    for name in changes.keys() - set(known):
        if "settings" not in known or ("." not in name and "protocols" in known):
            raise UserError(f'There is no option "{name}".{suggest(name, known)}')
    for name, value in changes.items():
        if name not in known:
            flags += _write_flag(name, value)
    return replace(options, **given | ({"settings": flags} if flags else {}))


def _write_flag(name: str, value: Any) -> list[str]:
    """Write a setting as a person types it: --optim.lr=0.3, --no-compile, --views.0.scale 0.2 1."""
    if value is False:
        first, dot, last = name.rpartition(".")
        name = f"{first}{dot}no-{last}"
    flag = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return [flag]
    return [flag, *map(str, value)] if isinstance(value, list | tuple) else [f"{flag}={value}"]


def refuse_flag(flag: str, command: str, known: Iterable[str]) -> UserError:
    """Build the error for a flag that does not exist; it suggests the nearest one that does."""
    name = flag.split("=")[0]
    path = "" if name.startswith("--") else f" If it is the name of a file, write ./{name}."
    known, switch = list(known), name.replace("--no-", "--", 1)
    offer = suggest(name, known)
    if switch != name and switch in known and "." in switch:
        group, _, setting = switch.rpartition(".")
        offer = f' Did you mean "{group}.no-{setting}"?'
    elif f"{name}.name" in known:  # --backbone, --optim
        offer = f' Did you mean "{name}.name"?'
    return UserError(f"There is no flag {name}.{offer}{path} See: {command} --help")


def _refuse(
    event: tyro_errors.ParseErrorEvent, *, words: list[str], known: list[str], typed: list[str]
) -> None:
    """Raise a UserError for an error of tyro; tyro prints events that are not handled here."""
    see = f"See: {event.prog} --help"
    if isinstance(event, tyro_errors.UnrecognizedArgs):
        flag = next((token for token in event.tokens if token.startswith("-")), None)
        if flag is not None:
            raise refuse_flag(flag, event.prog, known)
        raise _refuse_words(event.tokens, typed, see)
    if isinstance(event, tyro_errors.MissingArgs):
        _refuse_missing([context.arg for context in event.missing_arguments], event, words, known)
    if isinstance(event, tyro_errors.BadValue):
        if event.argument.is_positional():
            _refuse_missing([event.argument], event, words, known)
        count = event.argument.lowered.nargs
        values = f"{count} values" if isinstance(count, int) and count > 1 else "a value"
        raise UserError(f"{event.argument.display_name()} needs {values}. {see}")
    if isinstance(event, tyro_errors.InvalidChoice):
        flag = event.argument.lowered.name_or_flags[0]
        check_setting(_setting_name(flag), event.value, event.argument.field.type_stripped)
        choices = ", ".join(event.choices)
        raise UserError(f'{flag} is "{event.value}"; it must be one of {choices}.')
    if isinstance(event, tyro_errors.InstantiationFailure):
        if event.argument is None:
            raise UserError(_join(event.message))
        flag = event.argument.lowered.name_or_flags[0]
        value = " ".join(_words_after(flag, words))
        check_setting(_setting_name(flag), value, event.argument.field.type_stripped)
        raise UserError(f'{flag} is "{value}": {_join(event.message)}')


def _refuse_words(tokens: Sequence[str], typed: Sequence[str], see: str) -> UserError:
    """Build the error for surplus words; it names the switch that they follow."""
    pairs = [*pairwise(typed), *(word.split("=", 1) for word in typed if "=" in word)]
    flags = [flag for flag, word in pairs if word in tokens and flag.startswith("--")]
    switches = list(dict.fromkeys(flag for flag in flags if "=" not in flag))
    words = f'"{list_first(tokens)}" is one argument too many'
    if len(switches) == 1:
        [switch] = switches
        first, dot, last = switch.removeprefix("--").rpartition(".")
        off = "" if last.startswith("no-") else f"; --{first}{dot}no-{last} switches it off"
        return UserError(f"{switch} takes no value: {words}. Leave it out{off}. {see}")
    words += f" after {' or '.join(switches)}" if switches else ""
    return UserError(
        f"{words}. A switch takes no value, and a name with spaces needs quotes. {see}"
    )


def _refuse_missing(
    missing: Sequence[Any],
    event: tyro_errors.ParseErrorEvent,
    words: Sequence[str],
    known: Sequence[str],
) -> None:
    """Raise a UserError for missing arguments, or for an unknown flag in their place."""
    flags = [word for word in words if word.startswith("-")]
    for flag in flags:
        if flag.split("=")[0].replace("_", "-").replace("--no-", "--") not in known:
            raise refuse_flag(flag, event.prog, known)
    names = " and ".join(str(arg.lowered.metavar) for arg in missing)
    helps = _join(" ".join(str(arg.field.helptext or "") for arg in missing))
    be = "is" if len(missing) == 1 else "are"
    raise UserError(f"{names} {be} missing. {helps} See: {event.prog} --help")


def _setting_name(flag: str) -> str:
    """Name of a setting as Python and recipe.json have it: optim.lr_1d for --optim.lr-1d."""
    return flag.removeprefix("--").replace("-", "_")


def _words_after(flag: str, words: Sequence[str]) -> list[str]:
    """The values that a command line gives to a flag."""
    values: list[str] = []
    inside = False
    for word in words:
        if word.startswith("--"):
            name, _, value = word.partition("=")
            inside = name.replace("_", "-") == flag
            values = values if not inside else [value] if value else []
        elif inside:
            values.append(word)
    return values


def _join(text: str) -> str:
    return " ".join(text.split())
