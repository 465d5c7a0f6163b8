"""Tables for the terminal."""

from collections.abc import Iterable, Mapping
from typing import Any

from rich.table import Table


def build_table(records: Iterable[Mapping[str, Any]], *, title: str | None = None) -> Table:
    """Build a table with a line for each record and a column for each key of the first."""
    records = list(records)
    table = Table(title=title, title_justify="left", header_style="bold")
    for number, name in enumerate(records[0] if records else ()):
        header = name.replace("_", " ")
        # The first column names the line and is copied by people, so it never wraps; a header
        # wraps only between words.
        width = min(12, max(map(len, header.split()), default=0))
        table.add_column(header, no_wrap=number == 0, overflow="fold", min_width=width)
    for record in records:
        table.add_row(*(format_value(value) for value in record.values()))
    return table


def format_value(value: Any) -> str:
    """Format one value for a table: yes or no, four digits, thousands separated."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
