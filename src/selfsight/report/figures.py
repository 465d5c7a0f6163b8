"""Numbers of a run, made ready to be drawn; what is said about them is in words.toml."""

import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from itertools import pairwise
from typing import Any

Json = Any  # what json.loads gives
Records = Sequence[Mapping[str, Json]]
Number = int | float
Point = tuple[Number, Number | None, Number]  # step, epoch, value

WORDS: dict[str, list[dict[str, Json]]] = tomllib.loads(
    resources.files("selfsight.report").joinpath("words.toml").read_text("utf-8")
)
MOST_POINTS = 2000
PARTS = ("backbone", "projector")
GRADIENT = {"num_negatives", "mean", "std", "bound"}


def finite(values: Iterable[Json]) -> list[Number | None]:
    """Each value if it is a finite number, or None for anything else."""
    return [v if type(v) in (int, float) and math.isfinite(v) else None for v in values]


def number(value: Json) -> Number | None:
    """The value if it is a finite number, or None for anything else."""
    return finite([value])[0]


def section(value: Json, *keys: str) -> dict[str, Json]:
    """The dictionary under these keys, or an empty one."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return dict(value) if isinstance(value, Mapping) else {}


def latest(records: Records, key: str) -> Number | None:
    """The newest finite value of one key, or None."""
    values = (number(record.get(key)) for record in reversed(records))
    return next((value for value in values if value is not None), None)


def present(values: Mapping[str, Json]) -> dict[str, Number]:
    """Only what is a finite number."""
    return {key: found for key, value in values.items() if (found := number(value)) is not None}


def thin(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """At most this many points: the first, the last, the lowest and highest of each stretch."""
    if len(points) <= most:
        return list(points)
    stretches = most // 2 - 1
    kept = {0, len(points) - 1}
    for begin, end in pairwise(i * len(points) // stretches for i in range(stretches + 1)):
        kept.add(min(range(begin, end), key=lambda i: points[i][2]))
        kept.add(max(range(begin, end), key=lambda i: points[i][2]))
    return [points[i] for i in sorted(kept)]


def _short(value: Number) -> Number:
    return (
        value if isinstance(value, int) else float(f"{value:.6g}")
    )  # more digits cannot be seen, and would double the page


def curves(records: Records, found: Mapping[str, Number]) -> list[Json]:
    """Every curve with its points and dashed levels; an empty one says why."""
    levels = {
        "loss": {"chance": latest(records, "chance_loss")},
        "online_knn": {
            "untrained": found.get("online_knn_untrained_accuracy"),
            "chance": found.get("chance"),
        },
    }
    steps, epochs = (finite(r.get(key) for r in records) for key in ("step", "epoch"))
    drawn = []
    for curve in WORDS["curves"]:
        values = finite(r.get(curve["key"]) for r in records)
        rows = zip(steps, epochs, values, strict=True)
        known = [(s, e, v) for s, e, v in rows if s is not None and v is not None]
        if known or "absent" in curve:
            points = [(s, None if e is None else _short(e), _short(v)) for s, e, v in thin(known)]
            level = present(levels.get(curve["key"], {}))
            lost = len(records) - len(known)  # only news where a value is due in every record
            drawn.append(curve | {"points": points, "levels": level, "lost": lost})
    return drawn


def features(found: Json) -> list[Json]:
    """Charts of what the features look like, where that was analyzed; each as series of points."""
    rows = found.get("gradients") if isinstance(found, Mapping) else None
    drawn = []
    for words in WORDS["features"]:
        if words["key"] == "gradients":
            series = _gradients([row for row in rows or [] if isinstance(row, Mapping)])
        else:
            parts = ((part, section(found, part).get(words["key"])) for part in PARTS)
            series = [
                {"name": part, "points": points, "steps": words["key"] != "eigenvalues"}
                for part, values in parts
                if (points := _spectrum(values) if isinstance(values, list) else _bins(values))
            ]
        if series:
            drawn.append(words | {"series": series})
    return drawn


def _spectrum(values: Sequence[Json]) -> list[list[Number]]:
    known = enumerate(finite(values), 1)
    return [[rank, _short(v)] for rank, v in known if v is not None and v > 0]


def _bins(values: Json) -> list[list[Number]]:
    """Where each bin begins and what it holds, without the empty ones at either end."""
    found = section({"bins": values}, "bins")
    edges, counts = finite(found.get("edges") or []), finite(found.get("counts") or [])
    full = [i for i, count in enumerate(counts) if count]
    if not full or len(edges) != len(counts) + 1:
        return []
    at = range(full[0], full[-1] + 1)
    points = [[_short(edges[i] or 0), counts[i] or 0] for i in at]
    return [*points, [_short(edges[full[-1] + 1] or 0), 0]]


def _gradients(rows: Sequence[Mapping[str, Json]]) -> list[Json]:
    series = []
    for name, ruled in (("as it is", False), ("under EqCo's rule", True)):
        mine = [present(row) for row in rows if (row.get("alpha") is None) != ruled]
        mine = [row for row in mine if row.keys() >= GRADIENT]
        if mine:
            at = [row["num_negatives"] for row in mine]
            points = [
                [n, _short(row["mean"]), _short(row["std"])]
                for n, row in zip(at, mine, strict=True)
            ]
            bound = [[n, _short(row["bound"])] for n, row in zip(at, mine, strict=True)]
            series.append({"name": name, "points": points, "bound": bound})
    return series


def accuracies(results: Mapping[str, Json], records: Records) -> dict[str, Number]:
    """The finite accuracies by name, from the results or else from the log."""
    found: dict[str, Json] = {"online_knn_accuracy": latest(records, "online_knn")}
    for bar in WORDS["bars"]:
        for file in (bar.get("fallback"), bar["file"]):
            if file and (value := number(section(results, file).get(bar["field"]))) is not None:
                found[bar["key"]] = value
    return present(found)


def bars(found: Mapping[str, Number]) -> list[Json]:
    """The accuracies present, in reading order."""
    return [b | {"value": found[b["key"]]} for b in WORDS["bars"] if b["key"] in found]


def label_free(results: Mapping[str, Json]) -> list[Json]:
    """Measures that need no labels, after and before training."""
    rows = []
    for words in WORDS["label_free"]:
        pair = section(results, "label_free", words["key"])
        after, before = number(pair.get("trained")), number(pair.get("untrained"))
        if after is not None:
            rows.append(words | {"trained": after, "untrained": before})
    return rows
