"""Draw charts of the ledger as SVG: accuracy against what is varied, and against time."""

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from selfsight.studies.judge_claims import arm_results
from selfsight.studies.ledger import Entry
from selfsight.studies.study_types import Claim, Study

PLOT_TITLES = {  # by the end of the file name
    "": "Accuracy: ours, and published",
    "_curves": "Curves of training",
    "_time": "Accuracy against time in all",
}
COLORS = ("#1f6fb2", "#c8501e", "#2e8b57", "#8a4fae", "#b8860b", "#c2417c", "#4f6d7a", "#555555")
WIDTH, HEIGHT = 360, 300  # of a panel
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 34, 46  # margins


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points of one line: x, y, and half the length of the error bar."""

    name: str
    points: Sequence[tuple[float, float, float]]
    color: str
    joined: bool = True
    hollow: bool = False
    dots: bool = True
    labels: Sequence[str] = ()


def draw_study(study: Study, scale: str, entries: Sequence[Entry]) -> dict[str, str]:
    """All charts of a study that there are runs for, by the end of their file names."""
    plots = {
        "": draw_varied(study, scale, entries) if study.varied else None,
        "_curves": draw_curves(study, scale, entries),
    }
    compares_arms = any(_names(claim) for claim in study.claims)
    if not study.varied and not compares_arms:  # they are compared with what others publish
        plots |= {
            "": draw_accuracy(study, scale, entries),
            "_time": draw_time(study, scale, entries),
        }
    return {end: plot for end, plot in plots.items() if plot is not None}


def draw_varied(study: Study, scale: str, entries: Sequence[Entry]) -> str | None:
    """Accuracy against what a study varies: ours, and beside it what is published."""
    ours: dict[str, list[tuple[float, float, float]]] = {}
    for result in arm_results(study, scale, entries):
        mean = result.mean("linear")
        if result.arm.x is not None and mean is not None:
            point = (result.arm.x, mean, result.spread("linear") or 0.0)
            ours.setdefault(result.arm.line, []).append(point)
    if sum(map(len, ours.values())) < 2:
        return None
    published: dict[str, list[tuple[float, float, float]]] = {}
    likes = {arm.like: arm for arm in study.arms_at(scale) if arm.like}
    for arm in study.arms:
        repeated = likes.get(arm.name)
        line, x = (repeated.line, repeated.x) if repeated else (arm.line, arm.x)
        if arm.scale != scale and arm.published is not None and line in ours and x is not None:
            published.setdefault(line, []).append((x, arm.published, 0.0))
    color = dict(zip(ours, COLORS * 9, strict=False))
    panels = [
        _panel(
            f"{scale}, ours: linear accuracy, %",
            study.varied,
            [Series(name=k, points=sorted(v), color=color[k]) for k, v in ours.items()],
        )
    ]
    if published:
        series = [
            Series(name=k, points=sorted(v), color=color[k], hollow=True)
            for k, v in published.items()
        ]
        panels.append(_panel("published: linear top-1, %", study.varied, series))
    return _join(panels, f"{study.name}: accuracy against {study.varied}")


def draw_accuracy(study: Study, scale: str, entries: Sequence[Entry]) -> str | None:
    """kNN accuracy of the arms that were run, the best first: ours, and what is published."""
    arms = {arm.name: arm for arm in study.arms}
    rows = []
    for result in arm_results(study, scale, entries):
        if (mean := result.mean("knn_200")) is None:
            continue
        seed = min(result.accuracies("knn_200"))
        found = result.entries[seed].results["knn_200"]
        interval = (100 * found["low"], 100 * found["high"])
        if spread := result.spread("knn_200"):
            interval = (mean - spread, mean + spread)
        arm = arms.get(result.arm.like, result.arm)
        published = arm.published if "kNN (k = 200)" in arm.metric else None
        rows.append((mean, interval, published, result.arm.name))
    if len(rows) < 2:
        return None
    rows.sort(reverse=True)
    numbers = [v for mean, ends, published, _ in rows for v in (*ends, published or mean)]
    ticks = _nice_ticks(min(numbers) - 2, max(numbers) + 1)
    low, high = min(min(numbers) - 2, ticks[0]), max(max(numbers) + 1, ticks[-1])
    left, width, step = 130, 2 * WIDTH, 26
    height = TOP + step * len(rows) + BOTTOM

    def place(value: float) -> float:
        return left + (value - low) / (high - low) * (width - left - RIGHT - 40)

    parts = [
        f'<text x="{left}" y="16" font-weight="bold">{scale}: kNN accuracy (k = 200), %</text>'
        f'<text x="{width - RIGHT}" y="16" text-anchor="end">'
        "filled: ours, with its interval; hollow: published</text>"
    ]
    bottom = TOP + step * len(rows)
    parts += [
        f'<line x1="{place(t):.1f}" x2="{place(t):.1f}" y1="{TOP}" y2="{bottom}" stroke="#dddddd"/>'
        f'<text x="{place(t):.1f}" y="{bottom + 16}" text-anchor="middle">{t:g}</text>'
        for t in ticks
    ]
    for number, (mean, (start, end), published, name) in enumerate(rows):
        y = TOP + step * (number + 0.5)
        parts.append(
            f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{html.escape(name)}</text>'
            f'<line x1="{place(start):.1f}" x2="{place(end):.1f}" y1="{y}" y2="{y}" '
            f'stroke="{COLORS[0]}" stroke-width="2"/>'
            f'<circle cx="{place(mean):.1f}" cy="{y}" r="4.5" fill="{COLORS[0]}"/>'
            f'<text x="{width - RIGHT}" y="{y + 4}" text-anchor="end">{mean:.1f}</text>'
        )
        if published is not None:
            parts.append(
                f'<circle cx="{place(published):.1f}" cy="{y}" r="4.5" fill="#ffffff" '
                f'stroke="{COLORS[1]}" stroke-width="1.5"/>'
            )
    return _join(["\n".join(parts)], "Accuracy of the methods, ours and published", width, height)


def draw_time(study: Study, scale: str, entries: Sequence[Entry]) -> str | None:
    """Accuracy of each arm against the minutes from the start of its process."""
    points, names = [], []
    for result in arm_results(study, scale, entries):
        seconds, mean = result.seconds_in_all(), result.mean("knn_200")
        if seconds is not None and mean is not None:
            points.append((seconds / 60, mean, result.spread("knn_200") or 0.0))
            names.append(result.arm.name)
    if len(points) < 2:
        return None
    series = Series(name="", points=points, color=COLORS[0], joined=False, labels=names)
    title = f"{scale}: kNN accuracy (k = 200), %"
    x_title = "minutes, from the start of the process to the last result"
    panel = _panel(title, x_title, [series], width=2 * WIDTH, linear=True)
    return _join([panel], "Accuracy of each method against its time in all", 2 * WIDTH)


def draw_curves(study: Study, scale: str, entries: Sequence[Entry]) -> str | None:
    """Curves of the arms that are compared, first seed: online kNN, and the information bound."""
    named = {name for claim in study.claims for name in _names(claim)}
    runs = {
        result.arm.name.removeprefix(f"{scale}_"): result.entries[min(result.entries)]
        for result in arm_results(study, scale, entries)
        if result.arm.name in named and result.entries
    }
    columns = (("online_knn", "online kNN, %", 100), ("information_bound", "bound, nats", 1))
    panels = []
    for column, title, unit in columns:
        series = [
            Series(
                name=name,
                points=[
                    (x, unit * y, 0.0)
                    for x, y in zip(run.curve["epoch"], run.curve[column], strict=True)
                    if x is not None and y is not None
                ],
                color=color,
                dots=False,
            )
            for (name, run), color in zip(runs.items(), COLORS * 9, strict=False)
            if column in run.curve
        ]
        if len(series) > 1:
            panels.append(_panel(f"{scale}: {title}", "epoch", series, linear=True))
    return _join(panels, f"{study.name}: curves of training, seed 0") if panels else None


def _names(claim: Claim) -> tuple[str, ...]:
    """The arms that a claim compares with each other."""
    if isinstance(claim.than, float):
        return ()
    return claim.better, *((claim.than,) if isinstance(claim.than, str) else claim.than)


def _join(panels: Sequence[str], title: str, width: int = WIDTH, height: int = HEIGHT) -> str:
    body = "".join(
        f'<g transform="translate({number * width} 0)">{panel}</g>\n'
        for number, panel in enumerate(panels)
    )
    total = width * len(panels)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {height}" '
        f'width="{total}" font-family="sans-serif" font-size="11" role="img">\n'
        f"<title>{html.escape(title)}</title>\n"
        f'<rect width="{total}" height="{height}" fill="#ffffff"/>\n{body}</svg>\n'
    )


def _panel(
    title: str, x_title: str, series: Sequence[Series], *, width: int = WIDTH, linear: bool = False
) -> str:
    """One set of axes; x is logarithmic if it spans more than a factor of ten."""
    xs = [x for line in series for x, _, _ in line.points]
    ends = [y + sign * bar for line in series for _, y, bar in line.points for sign in (-1, 1)]
    log = not linear and min(xs) > 0 and max(xs) > 10 * min(xs)
    low, high = min(ends), max(ends)
    pad = 0.08 * (high - low) or 1.0
    ticks = _nice_ticks(low - pad, high + pad)
    low, high = min(low - pad, ticks[0]), max(high + pad, ticks[-1])
    across = [
        math.log2(x) if log else x for x in (0.0 if linear else min(xs), max(xs)) if x or not log
    ]
    first, last = (across[0], across[-1]) if len(across) > 1 else (across[0] - 1, across[0] + 1)
    if any(line.labels for line in series):
        last += 0.12 * (last - first)  # room for labels

    def place(x: float, y: float) -> tuple[float, float]:
        share = ((math.log2(x) if log else x) - first) / ((last - first) or 1.0)
        inner_w, inner_h = width - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        return LEFT + 6 + share * (inner_w - 12), HEIGHT - BOTTOM - (y - low) / (
            high - low
        ) * inner_h

    parts = [f'<text x="{LEFT}" y="16" font-weight="bold">{html.escape(title)}</text>']
    for tick in ticks:
        _, y = place(xs[0], tick)
        parts.append(
            f'<line x1="{LEFT}" x2="{width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>'
        )
    for tick in _nice_ticks(0.0, max(xs)) if linear else sorted(set(xs)):
        x, _ = place(tick, low)
        parts.append(
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{tick:g}</text>'
        )
    parts.append(
        f'<text x="{(LEFT + width - RIGHT) / 2}" y="{HEIGHT - 10}" text-anchor="middle">'
        f"{html.escape(x_title)}</text>"
    )
    for number, line in enumerate(series):
        parts += _draw_series(line, place)
        if line.name:
            y = HEIGHT - BOTTOM - 8 - 14 * (len(series) - 1 - number)
            parts.append(
                f'<circle cx="{width - RIGHT - 6}" cy="{y - 4}" r="3" fill="{line.color}"/>'
                f'<text x="{width - RIGHT - 14}" y="{y}" text-anchor="end" fill="{line.color}">'
                f"{html.escape(line.name)}</text>"
            )
    return "\n".join(parts)


def _draw_series(line: Series, place: Callable[[float, float], tuple[float, float]]) -> list[str]:
    parts = list[str]()
    if line.joined and len(line.points) > 1:
        path = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y, _ in line.points)
        dash = ' stroke-dasharray="4 3"' if line.hollow else ""
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{line.color}" stroke-width="1.5"'
            f"{dash}/>"
        )
    for number, (x, y, bar) in enumerate(line.points):
        if not line.dots:
            break
        px, py = place(x, y)
        if bar:
            (_, top), (_, bottom) = place(x, y + bar), place(x, y - bar)
            parts.append(
                f'<line x1="{px:.1f}" x2="{px:.1f}" y1="{top:.1f}" y2="{bottom:.1f}" '
                f'stroke="{line.color}"/>'
            )
        fill = "#ffffff" if line.hollow else line.color
        parts.append(
            f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3.5" fill="{fill}" stroke="{line.color}"/>'
        )
        if line.labels:
            label = html.escape(line.labels[number])
            parts.append(f'<text x="{px + 6:.1f}" y="{py + 4:.1f}">{label}</text>')
    return parts


def _nice_ticks(low: float, high: float) -> list[float]:
    """About five round numbers between two."""
    raw = (high - low) / 5
    power = 10 ** math.floor(math.log10(raw))
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= raw)
    first = math.ceil(low / step - 1e-9)
    return [float(round(n * step, 10)) for n in range(first, math.floor(high / step + 1e-9) + 1)]
