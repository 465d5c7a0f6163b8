"""The outcome of an evaluation for each test image, and the numbers computed from it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from selfsight.evals.bootstrap_intervals import (
    Interval,
    accuracy_interval,
    balanced_interval,
    mean_interval,
    replicate_interval,
)

Scores = dict[str, Any]  # numbers by name, and under `per_image` what they were computed from


@dataclass(frozen=True, kw_only=True, eq=False)
class PerImage:
    """Outcomes for n test images, by the name of the number computed from them.

    Replicates are the number itself, then its value on every resample.
    """

    n: int
    values: dict[str, Float[np.ndarray, " n"]]  # whose mean is the number
    replicates: dict[str, Float[np.ndarray, " b"]] = field(default_factory=dict)
    y: Int64[np.ndarray, " n"] | None = None
    predictions: Int64[np.ndarray, " n"] | None = None  # those of the first of `values`


def score_predictions(
    y: Int64[Tensor, " n"],
    predictions: Mapping[str, Int64[Tensor, " n"]],
    correct: Mapping[str, Bool[Tensor, " n"]] | None = None,
) -> Scores:
    """Accuracy of each prediction, with its interval; the first is also balanced over classes.

    `correct` has further measures that are right or wrong for each image, such as top5.
    """
    first = next(iter(predictions.values()))
    values = {name: (guess == y) for name, guess in predictions.items()} | dict(correct or {})
    per_image = PerImage(
        n=len(y),
        values={name: value.double().cpu().numpy() for name, value in values.items()},
        y=y.cpu().numpy(),
        predictions=first.cpu().numpy(),
    )
    return score_per_image(per_image)


def score_per_image(per_image: PerImage) -> Scores:
    """Every number with its interval; with predictions, also the accuracy balanced over classes."""
    numbers: Scores = {}
    for name, values in per_image.values.items():
        is_share = bool(np.isin(values, (0, 1)).all())
        numbers |= name_ends(name, (accuracy_interval if is_share else mean_interval)(values))
    for name, (value, *replicates) in per_image.replicates.items():
        numbers |= name_ends(name, replicate_interval(value, np.array(replicates)))
    if per_image.predictions is not None and per_image.y is not None:
        correct = (per_image.predictions == per_image.y).astype(np.float64)
        numbers |= name_ends("balanced_accuracy", balanced_interval(per_image.y, correct))
    return numbers | {"n": per_image.n, "per_image": per_image}


def name_ends(name: str, interval: Interval) -> dict[str, float]:
    """Name a number and its ends: accuracy, accuracy_low, accuracy_high."""
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}


def named_interval(numbers: Mapping[str, Any], name: str) -> Interval | None:
    """Read a number and its ends back; None if it has none."""
    keys = (name, f"{name}_low", f"{name}_high")
    ends = [number for key in keys if isinstance(number := numbers.get(key), int | float)]
    return Interval(*ends) if len(ends) == 3 else None


def confusion_matrix(
    y: Int[np.ndarray, " n"], predictions: Int[np.ndarray, " n"], num_classes: int
) -> Int64[np.ndarray, "c c"]:
    """Number of images of each class (row) by their prediction (column)."""
    cell = y.astype(np.int64) * num_classes + predictions
    return np.bincount(cell, minlength=num_classes**2).reshape(num_classes, num_classes)


def score_each_class(
    confusion: Int64[np.ndarray, "c c"], names: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Accuracy of every class that has test images, with its interval and their number."""
    scores = {}
    for name, right, n in zip(names, confusion.diagonal(), confusion.sum(axis=1), strict=True):
        if n:
            correct = np.arange(n) < right
            interval = accuracy_interval(correct.astype(np.float64))
            scores[name] = {**name_ends("accuracy", interval), "n": int(n)}
    return scores
