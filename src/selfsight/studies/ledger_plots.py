"""Draw charts of the ledger as SVG: accuracy against what is varied, curves, and time."""

from collections.abc import Sequence

from selfsight.studies.charts import (
    COLORS,
    DASHES,
    Point,
    Row,
    Series,
    draw_chart,
    draw_heat_map,
    draw_rows,
)
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
    "_cells": "Accuracy of each pair",
    "_published": "Published accuracy",
    "_curves": "Online kNN during training",
    "_bound": "Information bound during training",
    "_variance": "Variance within an image",
    "_time": "Accuracy against time in all",
}
PLOT_CAPTIONS = {
    "": f"{BARS} Lines that share an x are drawn a little apart.",
    "_cells": "The mean over seeds. White cells were not run.",
    "_published": (
        "These numbers are of another data set than ours: compare their order, not how high they "
        "are. Their spread over seeds is not known."
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
        "": draw_chart(
            f"{name_images(scale, results)}, ours: linear accuracy, %", study.varied, series
        )
    }
    if published:
        series = [
            Series(name=k, points=sorted(v), color=colors[k], dash="4 3")
            for k, v in published.items()
        ]
        title = f"{', '.join(data_sets)}, published: linear top-1, %"
        plots["_published"] = draw_chart(title, study.varied, series)
    return plots


def draw_cells(study: Study, scale: Scale, results: Sequence[ArmResult]) -> dict[str, str]:
    """Heat maps of the linear accuracy of each cell: ours, and what is published."""
    ours = {r.arm.cell: m for r in results if r.arm.cell and (m := r.mean("linear")) is not None}
    if not ours:
        return {}
    names = list(dict.fromkeys(name for arm in study.arms if arm.cell for name in arm.cell))
    title = f"{name_images(scale, results)}, ours: linear accuracy, %"
    plots = {"_cells": draw_heat_map(title, study.varied, names, ours)}
    others = [arm for arm in study.arms if arm.scale != scale]
    published = {a.cell: a.published for a in others if a.cell and a.published is not None}
    if published:
        data_sets = dict.fromkeys(DATA_SETS[arm.scale] for arm in others)
        title = f"{', '.join(data_sets)}, published: linear top-1, %"
        plots["_published"] = draw_heat_map(title, study.varied, names, published)
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
            mean, ends, mark = _measured(result, "knn_200")
            rows.append(Row(result.arm.name, mean, ends, mark, published))
    if len(rows) < 2:
        return {}
    rows.sort(key=lambda row: -row.value)
    return {"": draw_rows(f"{name_images(scale, results)}: kNN accuracy (k = 200), %", rows)}


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
    return {"_time": draw_chart(title, x_title, [series], linear=True)}


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
            if points:
                series.append(Series(name=name, points=points, color=colors[line], dash=dash))
        if len(series) > 1:
            full_title = f"{name_images(scale, results)}, first seed: {title}"
            plots[end] = draw_chart(full_title, "epoch", series, linear=True)
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
    return {"_variance": draw_chart(title, "variance over views, %", series, linear=True)}


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
