"""Text and tables for the terminal."""

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from selfsight.errors import escape


class _Terminal(Console):
    """A console that escapes control characters, also line breaks, in all text that it is given.

    Several lines are several texts: `print(first, second, sep="\\n")`.
    """

    def print(self, *texts: Any, **options: Any) -> None:
        """Print texts and tables."""
        super().print(*(escape(t) if isinstance(t, str) else t for t in texts), **options)


def open_console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """Open the terminal for text in which names of strangers may look like markup or controls."""
    return _Terminal(stderr=stderr, quiet=quiet, markup=False, highlight=False, emoji=False)


def build_table(records: Iterable[Mapping[str, Any]], *, title: str | None = None) -> Table:
    """Build a table with a line for each record and a column for each key of the first."""
    records = list(records)
    table = Table(title=title and escape(title), title_justify="left", header_style="bold")
    for number, name in enumerate(records[0] if records else ()):
        header = escape(name)  # may be the path of a run, to be copied
        # The first column names the line and is copied by people, so it never wraps; a header
        # wraps only between words.
        width = min(12, max(map(len, header.split()), default=0))
        table.add_column(header, no_wrap=number == 0, overflow="fold", min_width=width)
    for record in records:
        table.add_row(*(format_value(value) for value in record.values()))
    return table


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
