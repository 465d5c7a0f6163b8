"""Text and tables for the terminal."""

import contextlib
import os
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.table import Table
from rich.text import Text

from selfsight.errors import escape

VERBOSITY = "SELFSIGHT_VERBOSITY"  # quiet or verbose
PROSE = 20  # columns that sentences in a table need at least


class _Terminal(Console):
    """A console that escapes control characters, also line breaks, in all text that it is given.

    Several lines are several texts: `print(first, second, sep="\\n")`.
    """

    def print(self, *texts: Any, **options: Any) -> None:
        """Print texts and tables."""
        super().print(*(escape(t) if isinstance(t, str) else t for t in texts), **options)


@contextlib.contextmanager
def set_verbosity(level: str | None) -> Iterator[None]:
    """Print results and errors only (quiet), or everything (verbose), until the end of the block.

    It is a variable of the environment, so that processes started from here print in the same way.
    """
    before = os.environ.get(VERBOSITY)
    if level is not None:
        os.environ[VERBOSITY] = level
    try:
        yield
    finally:
        if level is not None:
            os.environ.pop(VERBOSITY)
            os.environ.update({} if before is None else {VERBOSITY: before})


def is_verbose() -> bool:
    """Whether every record, every file that is left out, and tracebacks are printed."""
    return os.environ.get(VERBOSITY) == "verbose"


def open_console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """Open the terminal for text in which untrusted names may look like markup or controls.

    Results go to stdout; progress and notes go to stderr, where --quiet leaves them out.
    """
    quiet = quiet or (stderr and os.environ.get(VERBOSITY) == "quiet")
    return _Terminal(stderr=stderr, quiet=quiet, markup=False, highlight=False, emoji=False)


def format_bytes(count: int) -> str:
    """Format in GiB, or in MiB below one."""
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 else f"{count / 2**20:,.1f} MiB"


def terminal_width() -> int:
    """Columns of the terminal, or of the variable COLUMNS; 80 if there is neither."""
    return shutil.get_terminal_size((80, 24)).columns


class RecordTable:
    """A table with a line for each record and a column for each key of the first.

    Where the columns do not fit side by side, each record is a few lines: no word is broken that
    the width can hold.
    """

    def __init__(self, records: Iterable[Mapping[str, Any]], title: str | None) -> None:
        self.records = [{k: format_value(v) for k, v in record.items()} for record in records]
        self.title = title and escape(title)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table | Text]:
        widths = self._column_widths()
        if sum(widths.values()) + 3 * len(widths) + 1 <= options.max_width:
            yield self._build_table(widths)
        else:
            yield from self._list_records(options.max_width)

    def _column_widths(self) -> dict[str, int]:
        """The least width of each column: its longest word, and room for a few words of prose."""
        widths = {}
        for number, name in enumerate(self.records[0] if self.records else ()):
            cells = [record.get(name, "") for record in self.records]
            words = [*escape(name).split(), *(word for cell in cells for word in cell.split())]
            longest = max((cell_len(cell) for cell in cells), default=0)
            word = max(map(cell_len, words), default=0)
            # The first column names the line and is copied by people, so it never wraps.
            widths[name] = max(word, longest if number == 0 else min(longest, PROSE))
        return widths

    def _build_table(self, widths: Mapping[str, int]) -> Table:
        table = Table(title=self.title, title_justify="left", header_style="bold")
        for number, (name, width) in enumerate(widths.items()):
            table.add_column(escape(name), no_wrap=number == 0, overflow="fold", min_width=width)
        for record in self.records:
            table.add_row(*record.values())
        return table

    def _list_records(self, width: int) -> Iterator[Text]:
        """List each record: its first value, then name and value of the others."""
        if self.title:
            yield Text(self.title, style="italic")
        for record in self.records:
            first, *others = record.items()
            yield Text(first[1], style="bold", overflow="fold")
            for name, value in others:
                if value:
                    yield _indent(f"{escape(name)}: {value}", width)


def build_table(records: Iterable[Mapping[str, Any]], *, title: str | None = None) -> RecordTable:
    """Build a table of records that fits the terminal that it is printed on."""
    return RecordTable(records, title)


def fit_line(head: str, cells: Sequence[str], width: int) -> list[str]:
    """Return a line of aligned cells, or where it does not fit, the head and the cells below it."""
    line = "".join((head, *cells))
    if cell_len(line) <= width:
        return [line]
    rest = ", ".join(cell.strip() for cell in cells)
    return [head.rstrip(), *wrap(rest, width, indent=4)]


def wrap(text: str, width: int, *, indent: int = 0, first: int | None = None) -> list[str]:
    """Wrap text between words; all lines are indented, the first one as much as `first` says."""
    margin = " " * (indent if first is None else first)
    return textwrap.wrap(
        text,
        width,
        initial_indent=margin,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _indent(text: str, width: int) -> Text:
    return Text("\n".join(wrap(text, width, indent=6, first=4)), overflow="fold")


def format_value(value: Any) -> str:
    """Format one value for a table: yes or no, four digits or more, thousands separated."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else escape(str(value))


def format_setting(value: Any) -> str:
    """Format a value as a person types it: 65536, 0.0001 and 1.5e-6, never 6.554e+04."""
    if isinstance(value, list | tuple):
        return " ".join(format_setting(item) for item in value)
    if not isinstance(value, float):
        return str(value)
    if value.is_integer():
        return str(int(value))
    digits, _, exponent = f"{value:.6g}".partition("e")
    return f"{digits}e{int(exponent)}" if exponent else digits
