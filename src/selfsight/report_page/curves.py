"""The curves of the report: loss, ranks, online_knn, thinned to a few thousand points each."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

from selfsight.report_page.json_values import (
    TEXTS,
    Json,
    Number,
    Records,
    finite,
    finite_items,
    latest,
    round_number,
)

Point = TypeVar("Point", bound=tuple[Any, ...])  # step, epoch, value, and more

MAX_POINTS = 2000


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


def curves(records: Records, scores: Mapping[str, Number], *, before: str) -> list[Json]:
    """Prepare every curve: its points and dashed reference levels.

    `before` is what training started from: the untrained network, or another encoder.
    """
    levels = {
        "loss": {"chance": latest(records, "chance_loss")},
        "online_knn": {
            before.split()[0]: scores.get("online_knn_untrained_accuracy"),
            "chance": scores.get("chance"),
        },
    }
    steps, epochs = (finite(r.get(key) for r in records) for key in ("step", "epoch"))
    prepared = []
    for curve in expand_layers(TEXTS["curves"], records):
        values = finite(r.get(curve["key"]) for r in records)
        rows = zip(steps, epochs, values, strict=True)
        known = [(s, e, v) for s, e, v in rows if s is not None and v is not None]
        if known or "absent" in curve:
            points = [
                (s, None if e is None else round_number(e), round_number(v))
                for s, e, v in downsample(known)
            ]
            level = finite_items(levels.get(curve["key"], {}))
            missing = len(records) - len(known)
            prepared.append(curve | {"points": points, "levels": level, "missing": missing})
            if curve["key"] == "online_knn":
                prepared[-1]["dips"] = _dips(records)
    return prepared


def expand_layers(texts: Sequence[dict[str, Json]], records: Records) -> list[dict[str, Json]]:
    """Replace a curve whose key ends with a dot by one for each logged key with that prefix."""
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
    """Steps with a dip of online_knn, where the count of dips in the log rises."""
    steps, counts = (finite(r.get(key) for r in records) for key in ("step", "online_knn_dips"))
    logged = zip(steps, counts, strict=True)
    known = [(step, count) for step, count in logged if step is not None and count is not None]
    before = [0, *(count for _, count in known)]
    return [step for (step, count), last in zip(known, before, strict=False) if count > last]
