"""Charts as SVG: lines with error bars, heat maps, and their keys."""

import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

COLORS = ("#1f6fb2", "#c8501e", "#2e8b57", "#8a4fae", "#b8860b", "#c2417c", "#4f6d7a", "#555555")
DASHES = ("", "7 3", "2 3", "9 3 2 3")
WIDTH, BOTTOM = 420, 270  # of a chart, and where its axes end
LEFT, RIGHT, TOP = 48, 14, 34  # margins
LINE = 20  # height of a line of the key, in pixels
MARKS = {  # what the points of a chart are
    "seeds": "several seeds: mean and standard deviation",
    "one seed": "one seed: 95 % interval over test images",
    "published": "published",
}


class Point(NamedTuple):
    """A point with the ends of its error bar, if it has one."""

    x: float
    y: float
    bar: tuple[float, float] | None = None
    mark: str = ""
    label: str = ""


class Row(NamedTuple):
    """A number with the ends of its interval, and the published one if there is one."""

    name: str
    value: float
    ends: tuple[float, float]
    mark: str
    published: float | None = None


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points of one line."""

    name: str
    points: Sequence[Point]
    color: str
    dash: str = ""
    joined: bool = True


def _frame(title: str, parts: Sequence[str], height: int) -> str:
    body = "\n".join(parts)
    title = html.escape(title)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" font-family="sans-serif" font-size="13" role="img">\n'
        f"<title>{title}</title>\n"
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>\n'
        f'<text x="{LEFT}" y="18" font-weight="bold">{title}</text>\n{body}\n</svg>\n'
    )


def draw_chart(title: str, x_title: str, series: Sequence[Series], *, linear: bool = False) -> str:
    """One set of axes, with a key below; x is logarithmic if it spans more than a factor of ten."""
    points = [point for line in series for point in line.points]
    xs = [point.x for point in points]
    ends = [y for point in points for y in (point.bar or (point.y,))]
    log = not linear and min(xs) > 0 and max(xs) > 10 * min(xs)
    low, high = min(ends), max(ends)
    pad = 0.08 * (high - low) or 1.0
    ticks = _nice_ticks(low - pad, high + pad)
    low, high = min(low - pad, ticks[0]), max(high + pad, ticks[-1])

    def position(x: float) -> float:
        return math.log2(x) if log else x

    first, last = position(0.0 if linear else min(xs)), position(max(xs))
    if first == last:
        first, last = first - 1, last + 1
    if any(point.label for point in points):
        last += 0.3 * (last - first)  # room for labels

    def place(x: float, y: float) -> tuple[float, float]:
        share = (position(x) - first) / (last - first)
        height = (y - low) / (high - low) * (BOTTOM - TOP)
        return LEFT + 16 + share * (WIDTH - RIGHT - LEFT - 32), BOTTOM - height

    parts = []
    for tick in ticks:
        _, y = place(xs[0], tick)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>'
        )
    free = 0.0  # where the label before ends
    for tick in _nice_ticks(0.0, max(xs)) if linear else sorted(set(xs)):
        x, half = place(tick, low)[0], 4 * len(f"{tick:g}")
        if x - half >= free:
            parts.append(
                f'<text x="{x:.1f}" y="{BOTTOM + 18}" text-anchor="middle">{tick:g}</text>'
            )
            free = x + half
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{BOTTOM + 38}" text-anchor="middle">'
        f"{html.escape(x_title)}</text>"
    )
    for number, line in enumerate(series):  # bars of the same x are drawn side by side
        shift = 5 * (number - (len(series) - 1) / 2) if any(p.bar for p in points) else 0.0
        parts += [f'<g transform="translate({shift} 0)">', *_draw_series(line, place), "</g>"]
    key = _key(series, {point.mark for point in points}, BOTTOM + 62)
    return _frame(title, [*parts, *key], BOTTOM + 60 + LINE * len(key))


def draw_rows(title: str, rows: Sequence[Row]) -> str:
    """A row for each number, with its interval and the published number."""
    numbers = [v for row in rows for v in (*row.ends, row.published or row.value)]
    ticks = _nice_ticks(min(numbers) - 2, max(numbers) + 1)
    low, high = min(min(numbers) - 2, ticks[0]), max(max(numbers) + 1, ticks[-1])
    left, step = 130, 26
    bottom = TOP + step * len(rows)

    def place(value: float) -> float:
        return left + (value - low) / (high - low) * (WIDTH - left - RIGHT - 40)

    parts = [
        f'<line x1="{place(t):.1f}" x2="{place(t):.1f}" y1="{TOP}" y2="{bottom}" stroke="#dddddd"/>'
        f'<text x="{place(t):.1f}" y="{bottom + 18}" text-anchor="middle">{t:g}</text>'
        for t in ticks
    ]
    for number, (name, value, (start, end), mark, published) in enumerate(rows):
        y = TOP + step * (number + 0.5)
        parts.append(
            f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{html.escape(name)}</text>'
            f'<path d="M{place(start):.1f} {y}H{place(end):.1f}" stroke="{COLORS[0]}"/>'
            f"{_mark(place(value), y, mark, COLORS[0])}"
            f'<text x="{WIDTH - RIGHT}" y="{y + 4}" text-anchor="end">{value:.1f}</text>'
        )
        if published is not None:
            parts.append(_mark(place(published), y, "published", COLORS[1]))
    marks = {row.mark for row in rows}
    if any(row.published is not None for row in rows):
        marks.add("published")
    key = _key([], marks, bottom + 40)
    return _frame(title, [*parts, *key], bottom + 38 + LINE * len(key))


def draw_heat_map(
    title: str, axes: str, names: Sequence[str], values: Mapping[tuple[str, str], float]
) -> str:
    """A number in each cell, on a darker ground if it is higher; white cells were not run."""
    low, high = min(values.values()), max(values.values())
    left, top, step = 70, TOP + 40, (WIDTH - 70 - RIGHT) / len(names)
    parts = [
        f'<text x="{left + step * len(names) / 2:.1f}" y="{TOP + 14}" text-anchor="middle">'
        f"{html.escape(axes)}</text>"
    ]
    for number, name in enumerate(names):
        middle = step * (number + 0.5)
        parts.append(
            f'<text x="{left - 8}" y="{top + middle + 4:.1f}" text-anchor="end">'
            f"{html.escape(name)}</text>"
            f'<text x="{left + middle:.1f}" y="{top - 8}" text-anchor="middle">'
            f"{html.escape(name)}</text>"
        )
    for (row, column), value in values.items():
        x, y = left + step * names.index(column), top + step * names.index(row)
        share = (value - low) / ((high - low) or 1.0)
        ink = "#ffffff" if share > 0.6 else "#222222"
        parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{step:.1f}" height="{step:.1f}" '
            f'fill="{COLORS[0]}" fill-opacity="{0.12 + 0.88 * share:.2f}" stroke="#dddddd"/>'
            f'<text x="{x + step / 2:.1f}" y="{y + step / 2 + 4:.1f}" text-anchor="middle" '
            f'fill="{ink}">{value:.1f}</text>'
        )
    return _frame(title, parts, round(top + step * len(names) + 10))


def _key(series: Sequence[Series], marks: set[str], top: int) -> list[str]:
    """Rows below the axes: the name of each line, and what each kind of point is."""
    x = LEFT + 14.0
    rows = []
    for line in series:
        if line.name:
            sample = f"M{x - 13} 0h26" if line.joined else ""
            rows.append((_stroke(sample, line.color, line.dash), line.name))
    rows += [(_mark(x, 0.0, mark, "#444444"), MARKS[mark]) for mark in MARKS if mark in marks]
    return [
        f'<g transform="translate(0 {top + LINE * number})">{sample}'
        f'<text x="{x + 22}" y="4">{html.escape(text)}</text></g>'
        for number, (sample, text) in enumerate(rows)
    ]


def _draw_series(line: Series, place: Callable[[float, float], tuple[float, float]]) -> list[str]:
    parts = list[str]()
    if line.joined and len(line.points) > 1:
        corners = ["{:.1f} {:.1f}".format(*place(point.x, point.y)) for point in line.points]
        parts.append(_stroke(f"M{'L'.join(corners)}", line.color, line.dash))
    for point in line.points:
        x, y = place(point.x, point.y)
        if point.bar:
            (_, low), (_, high) = (place(point.x, end) for end in point.bar)
            bar = f"M{x - 4:.1f} {low:.1f}h8m-4 0V{high:.1f}m-4 0h8"
            parts.append(_stroke(bar, line.color))
        if point.mark:
            parts.append(_mark(x, y, point.mark, line.color))
        if point.label:
            label = html.escape(point.label)
            parts.append(f'<text x="{x + 8:.1f}" y="{y + 4:.1f}">{label}</text>')
    return parts


def _stroke(path: str, color: str, dash: str = "") -> str:
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<path d="{path}" fill="none" stroke="{color}" stroke-width="1.5"{dashed}/>'


def _mark(x: float, y: float, mark: str, color: str) -> str:
    """A filled point, an open one for one seed, or a diamond for a published number."""
    look = f'fill="{color if mark == "seeds" else "#ffffff"}" stroke="{color}" stroke-width="1.5"'
    if mark == "published":
        return f'<path d="M{x:.1f} {y - 5:.1f}l5 5l-5 5l-5 -5z" {look}/>'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" {look}/>'


def _nice_ticks(low: float, high: float) -> list[float]:
    """About five round numbers between two."""
    raw = (high - low) / 5
    power = 10 ** math.floor(math.log10(raw))
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= raw)
    first = math.ceil(low / step - 1e-9)
    return [float(round(n * step, 10)) for n in range(first, math.floor(high / step + 1e-9) + 1)]
