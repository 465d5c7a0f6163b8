"""Prepare the numbers of a run for drawing; the texts about them are in texts.toml."""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from itertools import pairwise
from typing import Any

from selfsight.run_folder import is_finite
from selfsight.run_results import find_headline

Json = Any  # a value of json.loads
Records = Sequence[Mapping[str, Json]]
Number = int | float
Point = tuple[Number, Number | None, Number]  # step, epoch, value

TEXTS: dict[str, list[dict[str, Json]]] = tomllib.loads(
    resources.files("selfsight.report_page").joinpath("texts.toml").read_text("utf-8")
)
HEADLINE_NAMES = {
    "accuracy": "share of test images with the right label",
    "map": "mean average precision",
    "box_AP": "average precision of boxes",
}
DIFFERENCE_KEYS = ("difference", "low", "high", "n")
MAX_POINTS = 2000
LAYERS = ("backbone", "projector")
GRADIENT_KEYS = {"num_negatives", "mean", "std", "bound"}


def finite(values: Iterable[Json]) -> list[Number | None]:
    """Replace everything that is not a finite number by None."""
    return [v if is_finite(v) else None for v in values]


def number(value: Json) -> Number | None:
    """Return a finite number, or None for anything else."""
    return finite([value])[0]


def section(value: Json, *keys: str) -> dict[str, Json]:
    """Return the dictionary under these keys, or an empty one."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return dict(value) if isinstance(value, Mapping) else {}


def latest(records: Records, key: str) -> Number | None:
    """Return the newest finite value of one key, or None."""
    values = (number(record.get(key)) for record in reversed(records))
    return next((value for value in values if value is not None), None)


def finite_items(values: Mapping[str, Json]) -> dict[str, Number]:
    """Select the items whose value is a finite number."""
    return {key: n for key, value in values.items() if (n := number(value)) is not None}


def downsample(points: Sequence[Point], max_points: int = MAX_POINTS) -> list[Point]:
    """Keep the first and last point, and the lowest and highest of each interval."""
    if len(points) <= max_points:
        return list(points)
    intervals = max_points // 2 - 1
    indices = {0, len(points) - 1}
    for begin, end in pairwise(i * len(points) // intervals for i in range(intervals + 1)):
        indices.add(min(range(begin, end), key=lambda i: points[i][2]))
        indices.add(max(range(begin, end), key=lambda i: points[i][2]))
    return [points[i] for i in sorted(indices)]


def _round(value: Number) -> Number:
    """Round to six digits: more are not visible and would double the size of the page."""
    return value if isinstance(value, int) else float(f"{value:.6g}")


def curves(records: Records, scores: Mapping[str, Number]) -> list[Json]:
    """Prepare every curve: its points and dashed reference levels."""
    levels = {
        "loss": {"chance": latest(records, "chance_loss")},
        "online_knn": {
            "untrained": scores.get("online_knn_untrained_accuracy"),
            "chance": scores.get("chance"),
        },
    }
    steps, epochs = (finite(r.get(key) for r in records) for key in ("step", "epoch"))
    prepared = []
    for curve in _per_layer(TEXTS["curves"], records):
        values = finite(r.get(curve["key"]) for r in records)
        rows = zip(steps, epochs, values, strict=True)
        known = [(s, e, v) for s, e, v in rows if s is not None and v is not None]
        if known or "absent" in curve:
            points = [
                (s, None if e is None else _round(e), _round(v)) for s, e, v in downsample(known)
            ]
            level = finite_items(levels.get(curve["key"], {}))
            missing = len(records) - len(known)
            prepared.append(curve | {"points": points, "levels": level, "missing": missing})
            if curve["key"] == "online_knn":
                prepared[-1]["dips"] = _dips(records)
    return prepared


def _per_layer(texts: Sequence[dict[str, Json]], records: Records) -> list[dict[str, Json]]:
    """Replace the curve of a key that ends with a dot by one for each logged key that begins so."""
    logged = list(dict.fromkeys(key for record in records for key in record))
    expanded = []
    for curve in texts:
        if not curve["key"].endswith("."):
            expanded.append(curve)
            continue
        for key in (key for key in logged if key.startswith(curve["key"])):
            title = f"{curve['title']}: {key.removeprefix(curve['key'])}"
            expanded.append(curve | {"key": key, "title": title})
    return expanded


def _dips(records: Records) -> list[Number]:
    """Steps at which online_knn was a point or more below its best: the count in the log rose."""
    steps, counts = (finite(r.get(key) for r in records) for key in ("step", "online_knn_dips"))
    logged = zip(steps, counts, strict=True)
    known = [(step, count) for step, count in logged if step is not None and count is not None]
    before = [0, *(count for _, count in known)]
    return [step for (step, count), last in zip(known, before, strict=False) if count > last]


def features(analysis: Json, data: str = "") -> list[Json]:
    """Prepare the charts of a feature analysis, each as series of points."""
    on = f" on {data}" if data else ""
    rows = analysis.get("gradients") if isinstance(analysis, Mapping) else None
    charts = []
    for chart in TEXTS["features"]:
        if chart["key"] == "gradients":
            charts += _gradients_by_epoch(chart, analysis)
            series = _gradients(_mappings(rows))
        else:
            layers = ((layer, section(analysis, layer).get(chart["key"])) for layer in LAYERS)
            series = [
                {"name": layer, "points": points, "steps": chart["key"] != "eigenvalues"}
                for layer, values in layers
                if (points := _spectrum(values) if isinstance(values, list) else _bins(values))
            ]
        if series:
            charts.append(chart | {"series": series, "title": f"{chart['title']}{on}"})
    return charts


def _spectrum(values: Sequence[Json]) -> list[list[Number]]:
    known = enumerate(finite(values), 1)
    return [[rank, _round(v)] for rank, v in known if v is not None and v > 0]


def _bins(values: Json) -> list[list[Number]]:
    """Left edge and count of each bin, without the empty ones at either end."""
    bins = section({"bins": values}, "bins")
    lists = (bins.get(key) for key in ("edges", "counts"))
    edges, counts = (finite(values if isinstance(values, list) else []) for values in lists)
    full = [i for i, count in enumerate(counts) if count]
    if not full or len(edges) != len(counts) + 1:
        return []
    at = range(full[0], full[-1] + 1)
    points = [[_round(edges[i] or 0), counts[i] or 0] for i in at]
    return [*points, [_round(edges[full[-1] + 1] or 0), 0]]


def _gradients_by_epoch(chart: Mapping[str, Json], analysis: Json) -> list[Json]:
    """Prepare a chart for each checkpoint that was kept, in the order of the epochs."""
    charts = []
    for record in _mappings(analysis.get("epochs") if isinstance(analysis, Mapping) else None):
        if series := _gradients(_mappings(record.get("gradients"))):
            title = f"{chart['title']} after epoch {record.get('epoch')}"
            charts.append({**chart, "title": title, "series": series})
    return charts


def _mappings(values: Json) -> list[Mapping[str, Json]]:
    return [v for v in values if isinstance(v, Mapping)] if isinstance(values, list) else []


def _gradients(rows: Sequence[Mapping[str, Json]]) -> list[Json]:
    series = []
    for name, with_eqco in (("without EqCo", False), ("under EqCo's rule", True)):
        selected = [finite_items(row) for row in rows if (row.get("alpha") is None) != with_eqco]
        selected = [row for row in selected if row.keys() >= GRADIENT_KEYS]
        if selected:
            at = [row["num_negatives"] for row in selected]
            points = [
                [n, _round(row["mean"]), _round(row["std"])]
                for n, row in zip(at, selected, strict=True)
            ]
            bound = [[n, _round(row["bound"])] for n, row in zip(at, selected, strict=True)]
            series.append({"name": name, "points": points, "bound": bound})
    return series


def accuracies(results: Mapping[str, Json], records: Records) -> dict[str, Number]:
    """Collect the finite accuracies by name, from the results or else from the log."""
    scores: dict[str, Json] = {"online_knn_accuracy": latest(records, "online_knn")}
    for bar in _bar_texts(results):
        for file in (bar.get("fallback"), bar["file"]):
            if file and (value := number(section(results, file).get(bar["field"]))) is not None:
                scores[bar["key"]] = value
    return finite_items(scores)


def bars(scores: Mapping[str, Number], results: Mapping[str, Json], data: str = "") -> list[Json]:
    """Prepare a bar for each accuracy with its interval, in reading order.

    `data` is the data set of results that do not name theirs, if there are several.
    """
    prepared = []
    for bar in (bar for bar in _bar_texts(results) if bar["key"] in scores):
        found: dict[str, Json] = {}
        for file in (bar.get("fallback"), bar["file"]):
            found |= section(results, file) if file else {}
        prepared.append(bar | {**_interval(found, bar["field"]), "value": scores[bar["key"]]})
        file = str(bar["file"] if bar["file"] in results else bar.get("fallback", bar["file"]))
        if data and " on " not in file and not file.startswith("online_"):
            prepared[-1]["name"] += f" on {data}"
    return prepared


def _bar_texts(results: Mapping[str, Json]) -> list[dict[str, Json]]:
    """The bars of texts.toml, then one for the main number of every other protocol."""
    texts = list(TEXTS["bars"])
    named = {bar["file"] for bar in texts}
    for file in (file for file in results if file not in named):
        if (headline := find_headline(section(results, file))) is None:
            continue
        name = HEADLINE_NAMES[headline[0]]
        trained = {"name": f"{file}, after training", "meaning": name, "ours": True}
        untrained = {"name": f"{file}, untrained network", "meaning": name}
        for prefix, text in (("", trained), ("untrained_", untrained)):
            field = f"{prefix}{headline[0]}"
            texts.append({"key": f"{file}_{field}", "file": file, "field": field, **text})
    return texts


def differences(results: Mapping[str, Json]) -> list[Json]:
    """The difference of the encoder and each other in the main number of every protocol."""
    prepared = []
    for file in results:
        measure, _ = find_headline(section(results, file)) or ("", None)
        for other in section(results, file, "differences"):
            row = section(results, file, "differences", other, measure)
            known = finite_items({key: row.get(key) for key in DIFFERENCE_KEYS})
            if len(known) == len(DIFFERENCE_KEYS):
                prepared.append({"file": file, "other": other, **known})
    return prepared


def classes(results: Mapping[str, Json]) -> list[Json]:
    """Prepare the accuracy of each class and the confusion matrix of every result with classes."""
    prepared = []
    for name in results:
        result = section(results, name)
        rows = [
            _interval(section(row), "accuracy") | {"name": label, "n": number(row.get("n"))}
            for label, row in section(result, "per_class").items()
            if isinstance(row, Mapping) and number(row.get("accuracy")) is not None
        ]
        if len(rows) > 1:
            balanced = _interval(result, "balanced_accuracy")
            labels, confusion = result.get("class_names") or [], result.get("confusion")
            is_square = isinstance(labels, list) and _has_shape(confusion, len(labels))
            prepared.append(
                {
                    "name": name,
                    "rows": sorted(rows, key=lambda row: row["value"]),
                    "balanced": balanced if balanced["value"] is not None else None,
                    "labels": list(map(str, labels)) if is_square else None,
                    "confusion": confusion if is_square else None,
                }
            )
    return prepared


def plain_results(results: Mapping[str, Json]) -> dict[str, Json]:
    """Select what the table of all results shows: not what has a figure of its own."""
    figures = ("per_class", "class_names", "confusion")
    return {
        name: {key: value for key, value in section(result).items() if key not in figures}
        for name, result in results.items()
        if name != "verdict"
    }


def _interval(numbers: Mapping[str, Json], name: str) -> dict[str, Json]:
    """Read a number and the ends of its interval."""
    ends = {"value": name, "low": f"{name}_low", "high": f"{name}_high"}
    return {end: number(numbers.get(key)) for end, key in ends.items()}


def _has_shape(matrix: Json, size: int) -> bool:
    """Whether this is a square of finite numbers of this size."""
    rows = matrix if isinstance(matrix, list) and len(matrix) == size else [None]
    return all(isinstance(r, list) and len(r) == size and None not in finite(r) for r in rows)


def label_free(results: Mapping[str, Json]) -> list[Json]:
    """Prepare the measures that need no labels, trained and untrained."""
    rows = []
    for measure in TEXTS["label_free"]:
        pair = section(results, "label_free", measure["key"])
        after, before = number(pair.get("trained")), number(pair.get("untrained"))
        if after is not None:
            rows.append(measure | {"trained": after, "untrained": before})
    return rows
