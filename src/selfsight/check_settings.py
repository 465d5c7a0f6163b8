"""Check the values of settings: types and ranges, for every frozen dataclass.

Settings come from flags, from Python and from JSON files. `check_settings` compares each with the
type that its field declares and with a range for its numbers; the error names the setting.
"""

import functools
import json
import math
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from selfsight.errors import UserError, escape, suggest

LONGEST_TEXT = 4096  # characters, as of a path
LONGEST_LIST = 100_000
SHOWN = 80  # characters of a wrong value
RESTORE = "Restore it from a copy, or delete it and write it again with the command that wrote it."


class Range(NamedTuple):
    """The range of a numeric setting."""

    low: int | float = -math.inf
    high: int | float = math.inf
    low_allowed: bool = True
    high_allowed: bool = True

    def __contains__(self, value: Any) -> bool:
        above = value >= self.low if self.low_allowed else value > self.low
        return above and (value <= self.high if self.high_allowed else value < self.high)

    def __str__(self) -> str:
        low = f"{self.low:g} or more" if self.low_allowed else f"above {self.low:g}"
        high = f"{'at most' if self.high_allowed else 'below'} {_format_bound(self.high)}"
        if math.isinf(self.high):
            return "finite" if math.isinf(self.low) else low
        return high if math.isinf(self.low) else f"{low} and {high}"


# Upper ends are far beyond what is useful; they only catch what no machine could compute.
ANY = Range()
POSITIVE = Range(0, 1e9, low_allowed=False)
NOT_NEGATIVE = Range(0, 1e9)
SHARE = Range(0, 1)
POSITIVE_SHARE = Range(0, 1, low_allowed=False)
BELOW_ONE = Range(0, 1, high_allowed=False)
COUNT = Range(1, 10**9)
COUNT_OR_NONE = Range(0, 10**9)
FEW = Range(1, 100)
WIDTH = Range(1, 10**6)  # of a layer
PIXELS = Range(1, 2**14)  # side of an image
CHANNELS = Range(1, 1024)
EPOCHS = Range(1, 10**6)
BATCH_SIZE = Range(1, 10**7)
SEED = Range(0, 2**63 - 1)
LEARNING_RATE = Range(0, 1e38, low_allowed=False)  # of float32
NO_RANGES: Mapping[str, Range] = types.MappingProxyType({})
Check = Callable[[Any, Range | None], bool]


def check_settings(
    settings: Any, prefix: str = "", ranges: Mapping[str, Range] = NO_RANGES
) -> None:
    """Raise a UserError for a setting of another type than declared, or out of its range.

    Numbers are finite; the range of a setting holds for each number of a tuple. `prefix` is put
    before the name: "optim." for --optim.lr.
    """
    cls: Any = type(settings)
    for name, (declared, fits) in _declared_types(cls).items():
        value, range_ = getattr(settings, name), ranges.get(name, ANY)
        if not fits(value, range_):
            check_setting(prefix + name, value, declared, range_)


def check_setting(name: str, value: Any, declared: Any, range_: Range = ANY) -> None:
    """Raise a UserError unless a value has the declared type and its numbers are in the range."""
    fits = _build_check(declared)
    if fits(value, range_):
        return
    if fits(value, None):
        each = "made of numbers, each " if isinstance(value, list | tuple) else ""
        none = ", or None" if type(None) in typing.get_args(declared) else ""
        expected = f"{each}{range_}{none}"
    else:
        expected = _describe(declared, range_)
    similar = suggest(value[:SHOWN], _choices(declared)) if isinstance(value, str) else ""
    raise UserError(f"{name} is {show_value(value)}; it must be {expected}.{similar}")


def check_fields(
    saved: Mapping[str, Any],
    declared: Mapping[str, Any],
    source: object,
    *,
    required: Sequence[str] = (),
    prefix: str = "",
) -> None:
    """Raise a UserError that names a file and a field of it that is missing or of another type.

    `prefix` is the path to these fields in the file: "views.0.".
    """
    for name in required:
        if name not in saved:
            raise UserError(f"{source} is damaged: it has no {prefix}{name}. {RESTORE}")
    for name in declared.keys() & saved.keys():
        type_, value = declared[name], saved[name]
        try:
            if typing.get_origin(type_) is dict and isinstance(value, dict):
                for key, item in value.items():  # so that an error names the item, not the table
                    check_setting(f"{prefix}{name}.{key}", item, typing.get_args(type_)[1])
            else:
                check_setting(prefix + name, value, type_)
        except UserError as error:
            raise UserError(f"{source} is damaged: {error} {RESTORE}") from None


def build_settings(cls: Any, saved: Any, prefix: str, *, complete: bool = False) -> Any:
    """Build what a field declares from values of JSON; errors name a setting by its full path.

    A missing setting gets its default, or with `complete` is an error. A value that cannot be
    converted is left to the checks of its class.
    """
    build = functools.partial(build_settings, complete=complete)
    if is_dataclass(cls) and isinstance(saved, dict):
        declared = field_types(cls)
        for name in sorted(set(saved) - set(declared)):
            offer = suggest(name, declared)
            raise UserError(f"There is no setting {show_value(prefix + name)}.{offer}")
        for name in declared if complete else ():
            if name not in saved:
                raise UserError(
                    f"The setting {prefix}{name} is missing. Restore the file from a copy, or, if "
                    f"an earlier version wrote it, add the setting{_show_default(cls, name)}."
                )
        try:
            return cls(**{k: build(declared[k], v, f"{prefix}{k}.") for k, v in saved.items()})  # type: ignore[operator]
        except TypeError as error:  # settings that have no default
            raise UserError(
                f"Settings are missing in {prefix or 'the recipe'}: {error}."
            ) from error
    origin, args = typing.get_origin(cls), typing.get_args(cls)
    if origin is tuple and isinstance(saved, list | tuple):
        kinds = [args[0]] * len(saved) if args[-1] is Ellipsis else list(args)
        if len(kinds) != len(saved):
            return tuple(saved)
        pairs = zip(kinds, saved, strict=True)
        return tuple(
            _build_item(kind, value, prefix, number, complete=complete)
            for number, (kind, value) in enumerate(pairs)
        )
    if origin in (typing.Union, types.UnionType) and saved is not None:
        return build(next(t for t in args if t is not type(None)), saved, prefix)
    return saved


def _build_item(cls: Any, saved: Any, prefix: str, number: int, *, complete: bool) -> Any:
    """Build one item of a list; its position is added to error messages here."""
    path = f"{prefix}{number}."
    try:
        return build_settings(cls, saved, path, complete=complete)
    except UserError as error:
        text = str(error)
        if text.startswith(prefix) and not text.startswith(path):
            text = path + text.removeprefix(prefix)
        raise UserError(text) from error


def _show_default(cls: Any, name: str) -> str:
    """The default of a field as JSON, if it has one."""
    default = next(field.default for field in fields(cls) if field.name == name)
    return "" if default is MISSING else f", by default {json.dumps(default, default=asdict)}"


def show_value(value: Any) -> str:
    """Format a wrong value for an error: short, printable, and with quotes if it is text."""
    try:
        text = f'"{value}"' if isinstance(value, str) else str(value)
    except ValueError:  # Python does not print integers of over 4,300 digits
        return "a number of thousands of digits"
    text = escape(text)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(text):,} characters)"


def field_types(cls: Any) -> dict[str, Any]:
    """The declared types of the fields of a dataclass."""
    return {name: declared for name, (declared, _) in _declared_types(cls).items()}


@functools.cache
def _declared_types(cls: Any) -> dict[str, tuple[Any, Check]]:
    """The type of each field, and the check of its values."""
    hints = typing.get_type_hints(cls)
    types_of = {field.name: hints[field.name] for field in fields(cls)}
    return {name: (declared, _build_check(declared)) for name, declared in types_of.items()}


def _is_number(value: object) -> bool:
    """Whether this is a number that a float can hold: a whole number of JSON may be longer."""
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) <= sys.float_info.max
    return isinstance(value, float)


@functools.cache
def _build_check(declared: Any) -> Check:
    """Build the check whether a value has a type, and its numbers are in the range if there is one.

    It is built once for a type: thousands of settings are checked before a study is listed.
    """
    origin, args = typing.get_origin(declared), typing.get_args(declared)
    if declared is Any:
        return lambda value, range_: True
    if origin in (typing.Union, types.UnionType):
        options = [_build_check(option) for option in args]
        return lambda value, range_: any(fits(value, range_) for fits in options)
    if origin is Literal:
        return lambda value, range_: any(
            value == option and type(value) is type(option) for option in args
        )
    if origin in (tuple, list, Sequence):
        return _build_list_check(args, variadic=origin is not tuple or args[-1] is Ellipsis)
    if origin is dict:
        fits = _build_check(args[1])
        return lambda value, range_: (
            isinstance(value, dict)
            and all(isinstance(k, str) and fits(v, range_) for k, v in value.items())
        )
    if declared is int:
        return lambda value, range_: type(value) is int and (range_ is None or value in range_)
    if declared is float:
        return lambda value, range_: (
            _is_number(value) and (range_ is None or (abs(value) < math.inf and value in range_))
        )
    if declared is str:
        return lambda value, range_: isinstance(value, str) and _is_text(value)
    if declared is Path:
        return lambda value, range_: isinstance(value, Path) and _is_text(str(value))
    return lambda value, range_: isinstance(value, declared)


def _build_list_check(args: Sequence[Any], *, variadic: bool) -> Check:
    """Build the check of a list or tuple: any number of items of one type, or one of each type."""
    checks = [_build_check(kind) for kind in (args[:1] if variadic else args)]

    def fits(value: Any, range_: Range | None) -> bool:
        if not isinstance(value, list | tuple) or len(value) > LONGEST_LIST:
            return False
        if variadic:
            return all(checks[0](item, range_) for item in value)
        return len(checks) == len(value) and all(
            check(item, range_) for check, item in zip(checks, value, strict=True)
        )

    return fits


def _choices(declared: Any) -> list[str]:
    """List the words that a setting may be, also if it may have other types."""
    args = typing.get_args(declared)
    if typing.get_origin(declared) is Literal:
        return [option for option in args if isinstance(option, str)]
    return [word for option in args for word in _choices(option)]


def _is_text(value: str) -> bool:
    """Whether this text can be printed and used as a file name."""
    try:
        value.encode()
    except UnicodeEncodeError:  # half a character
        return False
    return "\0" not in value and len(value) <= LONGEST_TEXT


def _describe(declared: Any, range_: Range) -> str:
    origin, args = typing.get_origin(declared), typing.get_args(declared)
    if origin in (typing.Union, types.UnionType):
        options = [_describe(option, range_) for option in args if option is not type(None)]
        none = ["None"] if type(None) in args else []
        return ", or ".join([*dict.fromkeys(options), *none])
    if origin is Literal:
        return f"one of {', '.join(map(str, args))}"
    if origin in (tuple, list, Sequence):
        if origin is not tuple or args[-1] is Ellipsis:
            return f"a list, each item {_describe(args[0], range_)}"
        return f"{len(args)} values, each {_describe(args[0], range_)}"
    bounds = "" if range_ is ANY else f", {range_}"
    if declared is int:
        return f"a whole number{bounds}"
    if declared is float:
        return f"a number{bounds}"
    if declared is str:
        return f"text of at most {LONGEST_TEXT:,} characters that a file's name may have"
    if declared is bool:
        return "true or false"
    if origin is dict:
        return f"a table of names, each with {_describe(args[1], range_)}"
    name = getattr(declared, "__name__", str(declared))
    plain = {"Any": "a value", "Path": "a path", "dict": "a table of names and values"}
    return plain.get(name, f"a {name}")


def _format_bound(bound: int | float) -> str:
    return f"{bound:,}" if isinstance(bound, int) and bound < 10**15 else f"{bound:g}"
