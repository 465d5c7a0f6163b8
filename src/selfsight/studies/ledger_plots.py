"""Draw charts of the ledger as SVG: accuracy against what is varied, curves, and time."""

import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from selfsight.studies.judge_claims import ArmResult, arm_results
from selfsight.studies.ledger import Entry
from selfsight.studies.result_tables import DATA_SETS, name_images
from selfsight.studies.study_types import Claim, Measure, Scale, Study

BARS = (
    "A filled point is the mean of several seeds, and its bar the standard deviation over seeds. "
    "An open point is one seed, and its bar the 95 % interval over test images, which does not "
    "include how much seeds differ."
)
FIRST_SEED = "Only the first seed of each arm that a claim compares is shown."
PLOT_TITLES = {  # by the end of the file name
    "": "Accuracy",
    "_published": "Published accuracy",
    "_curves": "Online kNN during training",
    "_bound": "Information bound during training",
    "_variance": "Variance within an image",
    "_time": "Accuracy against time in all",
}
PLOT_CAPTIONS = {
    "": f"{BARS} Lines that share an x are drawn a little apart.",
    "_published": (
        "These numbers are of another data set than ours: compare how the lines run, not how high "
        "they are. Their spread over seeds is not known."
    ),
    "_curves": f"kNN accuracy on images that are trained on. {FIRST_SEED}",
    "_bound": (
        "The bound is a lower bound on the mutual information between two views of an image, by "
        "the InfoNCE loss: log(1 + K) minus the loss for K negatives, or log(1 + alpha) minus the "
        f"loss with EqCo's margin. {FIRST_SEED}"
    ),
    "_variance": (
        "Test images by the variance of their features over views, in percent of the largest that "
        f"unit features can have. {FIRST_SEED}"
    ),
    "_time": BARS,
}
COLORS = ("#1f6fb2", "#c8501e", "#2e8b57", "#8a4fae", "#b8860b", "#c2417c", "#4f6d7a", "#555555")
DASHES = ("", "7 3", "2 3", "9 3 2 3")
WIDTH, BOTTOM = 420, 270  # of a chart, and where its axes end
LEFT, RIGHT, TOP = 48, 14, 34  # margins
ROW = 20  # of the key, in pixels
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


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points of one line."""

    name: str
    points: Sequence[Point]
    color: str
    dash: str = ""
    joined: bool = True


def draw_study(study: Study, scale: Scale, entries: Sequence[Entry]) -> dict[str, str]:
    """All charts of a study that there are runs for, by the end of their file names."""
    results = [result for result in arm_results(study, scale, entries) if result.entries]
    if any(arm.cell for arm in study.arms):
        return draw_cells(study, scale, results) | draw_curves(study, scale, results)
    if study.varied:
        return draw_varied(study, scale, results) | draw_curves(study, scale, results)
    if any(_names(claim) for claim in study.claims):
        return draw_curves(study, scale, results) | draw_variance(study, scale, results)
    # They are compared with what others publish.
    return draw_accuracy(study, scale, results) | draw_time(scale, results)


def draw_varied(study: Study, scale: Scale, results: Sequence[ArmResult]) -> dict[str, str]:
    """Accuracy against what a study varies: ours, and what is published."""
    ours: dict[str, list[Point]] = {}
    for result in results:
        if result.arm.x is not None and result.mean("linear") is not None:
            point = Point(result.arm.x, *_measured(result, "linear"))
            ours.setdefault(result.arm.line, []).append(point)
    if sum(map(len, ours.values())) < 2:
        return {}
    published: dict[str, list[Point]] = {}
    data_sets: dict[str, None] = {}
    likes = {arm.like: arm for arm in study.arms_at(scale) if arm.like}
    for arm in study.arms:
        repeated = likes.get(arm.name)
        line, x = (repeated.line, repeated.x) if repeated else (arm.line, arm.x)
        if arm.scale != scale and arm.published is not None and line in ours and x is not None:
            published.setdefault(line, []).append(Point(x, arm.published, mark="published"))
            data_sets[DATA_SETS[arm.scale]] = None
    colors = _choose_colors(results)
    series = [Series(name=k, points=sorted(v), color=colors[k]) for k, v in ours.items()]
    plots = {
        "": _chart(f"{name_images(scale, results)}, ours: linear accuracy, %", study.varied, series)
    }
    if published:
        series = [
            Series(name=k, points=sorted(v), color=colors[k], dash="4 3")
            for k, v in published.items()
        ]
        title = f"{', '.join(data_sets)}, published: linear top-1, %"
        plots["_published"] = _chart(title, study.varied, series)
    return plots


def draw_cells(study: Study, scale: Scale, results: Sequence[ArmResult]) -> dict[str, str]:
    """Heat maps of the linear accuracy of each cell: ours, and what is published."""
    ours = {r.arm.cell: m for r in results if r.arm.cell and (m := r.mean("linear")) is not None}
    if len(ours) < 2:
        return {}
    names = list(dict.fromkeys(name for arm in study.arms if arm.cell for name in arm.cell))
    title = f"{name_images(scale, results)}, ours: linear accuracy, %"
    plots = {"": _heat_map(title, study.varied, names, ours)}
    others = [arm for arm in study.arms if arm.scale != scale and arm.published is not None]
    published = {arm.cell: arm.published for arm in others if arm.cell and arm.published}
    if published:
        data_sets = ", ".join(dict.fromkeys(DATA_SETS[arm.scale] for arm in others))
        title = f"{data_sets}, published: linear top-1, %"
        plots["_published"] = _heat_map(title, study.varied, names, published)
    return plots


def draw_accuracy(study: Study, scale: Scale, results: Sequence[ArmResult]) -> dict[str, str]:
    """kNN accuracy of the arms that were run, the best first: ours, and what is published."""
    arms = {arm.name: arm for arm in study.arms}
    rows = []
    for result in results:
        if result.mean("knn_200") is not None:
            arm = arms.get(result.arm.like, result.arm)
            is_alike = arm.scale == scale and "kNN (k = 200)" in arm.metric
            published = arm.published if is_alike else None
            rows.append((*_measured(result, "knn_200"), published, result.arm.name))
    if len(rows) < 2:
        return {}
    rows.sort(key=lambda row: -row[0])
    numbers = [v for mean, ends, _, published, _ in rows for v in (*ends, published or mean)]
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
    for number, (mean, (start, end), mark, published, name) in enumerate(rows):
        y = TOP + step * (number + 0.5)
        parts.append(
            f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{html.escape(name)}</text>'
            f'<path d="M{place(start):.1f} {y}H{place(end):.1f}" stroke="{COLORS[0]}"/>'
            f"{_mark(place(mean), y, mark, COLORS[0])}"
            f'<text x="{WIDTH - RIGHT}" y="{y + 4}" text-anchor="end">{mean:.1f}</text>'
        )
        if published is not None:
            parts.append(_mark(place(published), y, "published", COLORS[1]))
    marks = {row[2] for row in rows}
    if any(row[3] is not None for row in rows):
        marks.add("published")
    key = _draw_key([], marks, bottom + 40)
    title = f"{name_images(scale, results)}: kNN accuracy (k = 200), %"
    return {"": _frame(title, [*parts, *key], bottom + 38 + ROW * len(key))}


def draw_time(scale: Scale, results: Sequence[ArmResult]) -> dict[str, str]:
    """Accuracy of each arm against the minutes from the start of its process."""
    points = [
        Point(seconds / 60, *_measured(result, "knn_200"), label=result.arm.name)
        for result in results
        if (seconds := result.seconds_in_all()) and result.mean("knn_200") is not None
    ]
    if len(points) < 2:
        return {}
    series = Series(name="", points=points, color=COLORS[0], joined=False)
    title = f"{name_images(scale, results)}: kNN accuracy (k = 200), %"
    x_title = "minutes, from the start of the process to the last result"
    return {"_time": _chart(title, x_title, [series], linear=True)}


def draw_curves(study: Study, scale: Scale, results: Sequence[ArmResult]) -> dict[str, str]:
    """Curves of the arms that are compared, first seed: online kNN, and the information bound."""
    named = {name for claim in study.claims for name in _names(claim)}
    colors = _choose_colors(results)
    compared = [result for result in results if result.arm.name in named]
    lines = [result.arm.line or result.arm.name for result in compared]
    plots = {}
    for end, column, title, unit in (
        ("_curves", "online_knn", "online kNN, %", 100),
        ("_bound", "information_bound", "information bound, nats", 1),
    ):
        series = []
        for number, (result, line) in enumerate(zip(compared, lines, strict=True)):
            curve = result.entries[min(result.entries)].curve
            if column not in curve:
                continue
            points = [
                Point(x, unit * y)
                for x, y in zip(curve["epoch"], curve[column], strict=True)
                if x is not None and y is not None
            ]
            dash = DASHES[lines[:number].count(line) % len(DASHES)]
            name = result.arm.name.removeprefix(f"{scale}_")
            series.append(Series(name=name, points=points, color=colors[line], dash=dash))
        if len(series) > 1:
            title = f"{name_images(scale, results)}, first seed: {title}"
            plots[end] = _chart(title, "epoch", series, linear=True)
    return plots


def draw_variance(study: Study, scale: Scale, results: Sequence[ArmResult]) -> dict[str, str]:
    """Histograms of the variance within an image, of the arms that a claim compares by it."""
    claims = [claim for claim in study.claims if claim.measure == "view_variance"]
    named = {name for claim in claims for name in _names(claim)}
    colors, series = _choose_colors(results), []
    for result in results:
        seeds = [seed for seed, entry in sorted(result.entries.items()) if entry.view_variance]
        if result.arm.name in named and seeds:
            counts = result.entries[seeds[0]].view_variance
            width, total = 100 / len(counts), sum(counts)
            points = [
                Point(width * (bin_ + 0.5), 100 * count / total)
                for bin_, count in enumerate(counts)
            ]
            name = result.arm.name.removeprefix(f"{scale}_")
            color = colors[result.arm.line or result.arm.name]
            series.append(Series(name=name, points=points, color=color))
    if len(series) < 2:
        return {}
    title = f"{name_images(scale, results)}, first seed: share of images, %"
    return {"_variance": _chart(title, "variance over views, %", series, linear=True)}


def _names(claim: Claim) -> tuple[str, ...]:
    """The arms that a claim compares with each other."""
    return (claim.better, *claim.others) if claim.others else ()


def _choose_colors(results: Sequence[ArmResult]) -> dict[str, str]:
    """A color for each line, which its arms have in all charts, and for each arm without one."""
    lines = dict.fromkeys(result.arm.line or result.arm.name for result in results)
    return dict(zip(lines, COLORS * 9, strict=False))


def _measured(result: ArmResult, measure: Measure) -> tuple[float, tuple[float, float], str]:
    """Mean, ends of the error bar, and mark of an arm that was run to the end."""
    values = result.values(measure)
    mean = sum(values.values()) / len(values)
    if (spread := result.spread(measure)) is not None:
        return mean, (mean - spread, mean + spread), "seeds"
    (seed,) = values
    found = result.entries[seed].results[measure]
    return mean, (100 * found["low"], 100 * found["high"]), "one seed"


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


def _chart(title: str, x_title: str, series: Sequence[Series], *, linear: bool = False) -> str:
    """One set of axes, with a key below; x is logarithmic if it spans more than a factor of ten."""
    points = [point for line in series for point in line.points]
    xs = [point.x for point in points]
    ends = [y for point in points for y in (point.bar or (point.y,))]
    log = not linear and min(xs) > 0 and max(xs) > 10 * min(xs)
    low, high = min(ends), max(ends)
    pad = 0.08 * (high - low) or 1.0
    ticks = _nice_ticks(low - pad, high + pad)
    low, high = min(low - pad, ticks[0]), max(high + pad, ticks[-1])
    across = [
        math.log2(x) if log else x for x in (0.0 if linear else min(xs), max(xs)) if x or not log
    ]
    first, last = (across[0], across[-1]) if len(across) > 1 else (across[0] - 1, across[0] + 1)
    if any(point.label for point in points):
        last += 0.3 * (last - first)  # room for labels

    def place(x: float, y: float) -> tuple[float, float]:
        share = ((math.log2(x) if log else x) - first) / ((last - first) or 1.0)
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
    key = _draw_key(series, {point.mark for point in points}, BOTTOM + 62)
    return _frame(title, [*parts, *key], BOTTOM + 60 + ROW * len(key))


def _heat_map(
    title: str, axes: str, names: Sequence[str], values: Mapping[tuple[str, str], float]
) -> str:
    """A number in each cell, on a darker ground if it is higher; empty cells were not run."""
    low, high = min(values.values()), max(values.values())
    left, top, step = 70, TOP + 40, (WIDTH - 70 - RIGHT) / len(names)
    parts = [
        f'<text x="{left + step * len(names) / 2:.1f}" y="{TOP + 14}" text-anchor="middle">'
        f"{html.escape(axes)}</text>"
    ]
    for number, name in enumerate(names):
        middle = step * (number + 0.5)
        parts.append(
            f'<text x="{left - 8}" y="{top + middle + 4:.1f}" text-anchor="end">{name}</text>'
            f'<text x="{left + middle:.1f}" y="{top - 8}" text-anchor="middle">{name}</text>'
        )
    for (row, column), value in values.items():
        x, y = left + step * names.index(column), top + step * names.index(row)
        share = (value - low) / ((high - low) or 1.0)
        ink = "#ffffff" if share > 0.65 else "#222222"
        parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{step:.1f}" height="{step:.1f}" '
            f'fill="{COLORS[0]}" fill-opacity="{share:.2f}" stroke="#dddddd"/>'
            f'<text x="{x + step / 2:.1f}" y="{y + step / 2 + 4:.1f}" text-anchor="middle" '
            f'fill="{ink}">{value:.1f}</text>'
        )
    return _frame(title, parts, round(top + step * len(names) + 10))


def _draw_key(series: Sequence[Series], marks: set[str], top: int) -> list[str]:
    """Rows below the axes: the name of each line, and what each kind of point is."""
    x = LEFT + 14.0
    rows = []
    for line in series:
        if line.name:
            sample = f"M{x - 13} 0h26" if line.joined else ""
            rows.append((_stroke(sample, line.color, line.dash), line.name))
    rows += [(_mark(x, 0.0, mark, "#444444"), MARKS[mark]) for mark in MARKS if mark in marks]
    return [
        f'<g transform="translate(0 {top + ROW * number})">{sample}'
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
