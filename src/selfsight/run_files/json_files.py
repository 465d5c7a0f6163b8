"""Read and write JSON and other files: complete or not at all, without following links."""

import contextlib
import errno
import json
import math
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from selfsight.check_settings import RESTORE
from selfsight.errors import ADVICE, RunError, UserError

NO_LINK = getattr(os, "O_NOFOLLOW", 0)  # flag of os.open; Windows has none
# A list of numbers, each on its own line: strings of JSON have no line breaks.
NUMBERS = re.compile(r"\[\n\s*([-+.\deE,\s]+?)\s*\]")


class WriteError(RunError):
    """The run folder cannot be written to."""


@contextlib.contextmanager
def explain_write_errors(path: Path) -> Iterator[None]:
    """Turn an OSError into a WriteError that names the file."""
    try:
        yield
    except OSError as error:
        advice = ADVICE.get(error.errno or 0, "")
        sentence = f"{path} cannot be written: {error.strerror or error}. {advice}"
        raise WriteError(sentence.rstrip()) from error


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file."""
    write_file(path, format_json(value) + "\n")


def write_file(path: Path, text: str) -> None:
    """Write a text file, and its folder if there is none; explain why if that is impossible."""
    with explain_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)


def write_text(path: Path, text: str) -> None:
    """Write a text file; a kill never leaves half of it."""
    with replace_file(path) as file:
        file.write(text.encode("utf-8", "replace"))  # names of files may hold lone surrogates


@contextlib.contextmanager
def replace_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file, which gets its name when it is complete, and is deleted otherwise."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    temporary = path.with_name(path.name + ".part")
    try:
        with create_file(temporary) as file:
            yield file
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):  # for example in a folder that was deleted
            temporary.unlink()
        raise


def create_file(path: Path) -> IO[bytes]:
    """Create a file, replacing what has its name; a link is replaced, not followed.

    In an untrusted run folder, a link may point to any file of the user.
    """
    path.unlink(missing_ok=True)
    return path.open("xb")


def append_to_file(path: Path, text: str) -> None:
    """Append to a file, created if need be; raise an OSError for a link, as in `create_file`."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | NO_LINK
    with open(path, "a", opener=lambda name, _: os.open(name, flags, 0o666)) as file:
        file.write(text)


def read_json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Read the object of each line, with the name of the line for errors.

    A last line without an end was cut short when its writer was killed, and is left out.
    """
    lines = read_bytes(path).split(b"\n")[:-1] if path.exists() else []
    for number, line in enumerate(lines, start=1):
        if line:
            source = f"{path}, line {number},"
            yield source, check_object(parse_json(line, source), source)


def write_json_lines(path: Path, values: list[dict[str, Any]]) -> None:
    """Write objects, one to a line. Fields that are not declared may hold any value."""
    with explain_write_errors(path):
        write_text(path, "".join(json.dumps(to_json(value)) + "\n" for value in values))


def format_json(value: Any) -> str:
    """Format with a line for each value, and with lists of numbers in one line."""
    text = json.dumps(value, indent=2, allow_nan=False)
    return NUMBERS.sub(lambda found: f"[{' '.join(found[1].split())}]", text)


def print_json(value: Any) -> None:
    """Print a value as JSON, on the first of the processes that torchrun starts."""
    if os.environ.get("RANK", "0") == "0":
        print(format_json(to_json(value)))


def read_json(path: Path) -> Any | None:
    """Read a JSON file; None if there is no such file, a UserError if it is damaged."""
    return parse_json(read_bytes(path), path) if path.exists() else None


def read_object(path: Path) -> dict[str, Any] | None:
    """Read a JSON file that holds names and values; None if there is no such file."""
    return check_object(read_json(path), path) if path.exists() else None


def read_bytes(path: Path) -> bytes:
    """Read a regular file; raise a UserError for a pipe or device."""
    if not path.is_file():  # reading a pipe would wait for ever
        raise UserError(f"{path} is not a regular file. {RESTORE}")
    return path.read_bytes()


def check_object(value: Any, source: Path | str) -> dict[str, Any]:
    """Return a value that has names; raise a UserError that names its source for any other."""
    if not isinstance(value, dict):
        kind = "a list" if isinstance(value, list) else json.dumps(value)[:80]
        raise UserError(f"{source} is damaged: it holds {kind} instead of an object. {RESTORE}")
    return value


def parse_json(text: str | bytes, source: Path | str) -> Any:
    """Parse JSON; raise a UserError that names its source if it is damaged."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, or nested too deeply
        raise UserError(f"{source} is damaged: it is not JSON ({error}). {RESTORE}") from error


def is_finite(value: Any) -> bool:
    """Return whether a value of JSON is a finite number that a float can hold."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def to_json(value: Any) -> Any:
    """Convert to values that JSON can hold: non-finite numbers become None, paths strings."""
    if isinstance(value, dict):
        return {name: to_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
