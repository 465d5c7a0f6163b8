"""Numbers of a run, made ready to be drawn; what is said about them is in words.toml."""

import math
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from itertools import pairwise
from typing import Any

Json = Any  # what json.loads gives
Records = Sequence[Mapping[str, Json]]
Point = tuple[float, float | None, float]  # step, epoch, value

WORDS: dict[str, list[dict[str, Json]]] = tomllib.loads(
    resources.files("sightline.report").joinpath("words.toml").read_text("utf-8")
)
MOST_POINTS = 2000


def number(value: Json) -> float | None:
    """The value as a finite float, or None for anything else."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None


def section(value: Json, *keys: str) -> dict[str, Json]:
    """The dictionary under these keys, or an empty one."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return dict(value) if isinstance(value, Mapping) else {}


def logged(records: Records, key: str) -> list[float]:
    """The finite values of one key, oldest first."""
    return [v for record in records if (v := number(record.get(key))) is not None]


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


def _short(value: float) -> float:
    return float(f"{value:.6g}")  # more digits cannot be seen, and would double the page


def curves(records: Records, accuracies: Mapping[str, float]) -> list[Json]:
    """Every curve with its points and dashed levels; an empty one says why."""
    drawn = []
    for curve in WORDS["curves"]:
        points: list[Point] = []
        for record in records:
            step, epoch = number(record.get("step")), number(record.get("epoch"))
            value = number(record.get(curve["key"]))
            if step is not None and value is not None:
                points.append((step, None if epoch is None else _short(epoch), _short(value)))
        levels = {}
        if curve["key"] == "loss":
            levels = {"chance": chance for chance in logged(records, "chance_loss")[-1:]}
        if curve["key"] == "knn":
            names = {"untrained network": "knn_untrained_accuracy", "chance": "chance"}
            levels = {name: accuracies[key] for name, key in names.items() if key in accuracies}
        # a loss is due in every record: one that is missing or infinite is news
        lost = len(records) - len(points) if curve["key"] == "loss" else 0
        if points or "absent" in curve:
            drawn.append(curve | {"points": thin(points), "levels": levels, "lost": lost})
    return drawn


def accuracies(results: Mapping[str, Json], records: Records) -> dict[str, float]:
    """The finite accuracies by name, from the results or else from the log."""
    found = {"knn_accuracy": value for value in logged(records, "knn")[-1:]}
    untrained = number(section(results, "baselines").get("untrained"))
    found |= {} if untrained is None else {"knn_untrained_accuracy": untrained}
    for bar in WORDS["bars"]:
        value = number(section(results, bar["file"]).get(bar["field"]))
        found |= {} if value is None else {bar["key"]: value}
    return found


def bars(found: Mapping[str, float]) -> list[Json]:
    """The accuracies present, in reading order."""
    return [b | {"value": found[b["key"]]} for b in WORDS["bars"] if b["key"] in found]


def gain(found: Mapping[str, float]) -> str | None:
    """What training gave, in a sentence, where there is something to compare with."""
    for key, name in (("knn", "kNN"), ("linear", "linear-probe")):
        after = found.get(f"{key}_accuracy")
        before = found.get(f"{key}_untrained_accuracy")
        if after is not None and before is not None:
            verb, more = ("raised", "more") if after >= before else ("lowered", "fewer")
            return (
                f"Training {verb} {name} accuracy from {100 * before:.1f} % to {100 * after:.1f} %: "
                f"{100 * abs(after - before):.1f} points {more} than the untrained network."
            )
    return None


def label_free(results: Mapping[str, Json]) -> list[Json]:
    """Measures that need no labels, after and before training."""
    rows = []
    for words in WORDS["label_free"]:
        pair = section(results, "label_free", words["key"])
        after, before = number(pair.get("trained")), number(pair.get("untrained"))
        if after is not None:
            rows.append(words | {"trained": after, "untrained": before})
    return rows
