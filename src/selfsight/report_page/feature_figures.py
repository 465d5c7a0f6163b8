"""The figures of a feature analysis: spectra, histograms, gradients by number of negatives."""

from collections.abc import Mapping, Sequence

from selfsight.report_page.json_values import (
    TEXTS,
    Json,
    Number,
    finite,
    finite_items,
    round_number,
    section,
)

LAYERS = ("backbone", "projector")

GRADIENT_KEYS = {"num_negatives", "mean", "std", "bound"}


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
    return [[rank, round_number(v)] for rank, v in known if v is not None and v > 0]


def _bins(values: Json) -> list[list[Number]]:
    """Left edge and count of each bin, without the empty ones at either end."""
    bins = section({"bins": values}, "bins")
    lists = (bins.get(key) for key in ("edges", "counts"))
    edges, counts = (finite(values if isinstance(values, list) else []) for values in lists)
    full = [i for i, count in enumerate(counts) if count]
    if not full or len(edges) != len(counts) + 1:
        return []
    at = range(full[0], full[-1] + 1)
    points = [[round_number(edges[i] or 0), counts[i] or 0] for i in at]
    return [*points, [round_number(edges[full[-1] + 1] or 0), 0]]


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
                [n, round_number(row["mean"]), round_number(row["std"])]
                for n, row in zip(at, selected, strict=True)
            ]
            bound = [[n, round_number(row["bound"])] for n, row in zip(at, selected, strict=True)]
            series.append({"name": name, "points": points, "bound": bound})
    return series
