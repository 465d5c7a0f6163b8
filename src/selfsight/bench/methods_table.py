"""The rows of `bench --all` as lines for the screen and as Markdown tables."""

from typing import Any

from selfsight.errors import count_noun
from selfsight.terminal.console import format_bytes

Row = dict[str, Any]
OVERHEADS = {
    "views": "augment",
    "heads and loss": "heads and loss",
    "optimizer and teacher": "optimizer and teacher",
    "data": "waiting for data",
    "batch norm, gaps, rest": "batch norm, gaps and all else",
}


def describe_row(row: Row) -> str:
    """One line for the screen."""
    head = f"{row['network']:<9} {row['name']:<18}"
    if "error" in row:
        return f"{head} not measured: {row['error']}"
    if "first_step" in row:
        seconds = "; ".join(f"{k} {_describe_start(v)}" for k, v in row["first_step"].items())
        return f"{head} {seconds} ({row['seconds']:.0f} s)"
    result = row["result"]
    memory = f", {format_bytes(result['memory'])}" if result["memory"] else ""
    rest = ", ".join(
        f"{label} {result['overhead'][key]:.2f}"
        for label, key in OVERHEADS.items()
        if abs(result["overhead"].get(key, 0.0)) >= 0.005
    )
    return (
        f"{head} {result['images_per_second']:>9,.0f} images/s, {result['fraction_of_limit']:.0%} "
        f"of {result['limit']:,.0f}{memory}; ms: {rest} ({row['seconds']:.0f} s)"
    )


def _describe_start(start: Row) -> str:
    return (
        f"first step {start['first_step']:.1f} s, full speed {start['full_speed']:.1f} s, "
        f"{start['images_per_second']:,.0f} images/s"
    )


def render_tables(rows: list[Row], titles: dict[str, str]) -> str:
    """Markdown: a table for each network, under its title."""
    return "\n".join(
        _network_table(title, [row for row in rows if row["network"] == name])
        for name, title in titles.items()
        if any(row["network"] == name for row in rows)
    )


def _network_table(title: str, rows: list[Row]) -> str:
    measured = [row for row in rows if "result" in row]
    batches = sorted({row["result"]["batch_size"] for row in measured})
    head = ["method", "images/s", "limit", "share", "memory, GiB", "foreseen"]
    head += ["step, ms", "network alone"]
    head += [*OVERHEADS, "loss alone"]
    lines = [f"{title}, batch {' and '.join(map(str, batches))}:", ""]
    lines += [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    lines += [_table_line(row, row["result"]) for row in measured]
    lines += [f"| {row['name']} | {row['error']} |" for row in rows if "error" in row]
    lines += _start_table([row for row in rows if "first_step" in row])
    lines += ["", _describe_sitting([row for row in rows if "error" not in row]), ""]
    return "\n".join(lines)


def _start_table(rows: list[Row]) -> list[str]:
    """Seconds before full speed, with an empty compile cache and with a full one."""
    if not rows:
        return []
    parts = ["imports", "images open", "first step", "full speed"]
    head = ["seconds from the start to the end of", "cache", *parts]
    lines = ["", f"| {' | '.join([*head, 'images/s'])} |", "|---" * (len(head) + 1) + "|"]
    for row in rows:
        for cache, start in row["first_step"].items():
            ends = [start["imports"], start["imports"] + start["data"]]
            ends += [start["first_step"], start["full_speed"]]
            seconds = [f"{end:.1f}" for end in ends]
            cells = [row["name"], cache, *seconds, f"{start['images_per_second']:,.0f}"]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def _table_line(row: Row, result: Row) -> str:
    n, memory, foreseen = result["batch_size"], result["memory"], row.get("foreseen")
    losses = [t["ms"] for t in result["timings"] if t["name"] == "loss alone"]
    cells = [
        row["name"],
        f"{result['images_per_second']:,.0f}",
        f"{result['limit']:,.0f}",
        f"{100 * result['fraction_of_limit']:.0f} %",
        f"{memory / 2**30:.1f}" if memory else "-",
        f"{foreseen / 2**30:.1f}" if foreseen else "-",
        f"{1000 * n / result['images_per_second']:.2f}",
        f"{1000 * n / result['limit']:.2f}",
        *(f"{result['overhead'].get(key, 0.0):.2f}" for key in OVERHEADS.values()),
        f"{losses[0]:.2f}" if losses else "-",
    ]
    return f"| {' | '.join(cells)} |"


def _describe_sitting(rows: list[Row]) -> str:
    devices = sorted({row["setting"]["device"] for row in rows})
    versions = [row["version"] for row in rows]
    commits = sorted(
        {(v["commit"] or v["sources"]) + (" (changed)" if v["changed"] else "") for v in versions}
    )
    dates = sorted({row["date"] for row in rows})
    torches = sorted({row["torch"] for row in rows})
    minutes = sum(row["seconds"] for row in rows) / 60
    return (
        f"{', '.join(devices)}; torch {', '.join(torches)}; commit {', '.join(commits)}; "
        f"{', '.join(dates)}; {count_noun(len(rows), 'row')} in {minutes:.1f} minutes."
    )
