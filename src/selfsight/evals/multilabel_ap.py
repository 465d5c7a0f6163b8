"""Average precision of a ranking, as Pascal VOC and VISSL count it."""

from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from selfsight.evals.bootstrap_intervals import resampled_counts

Points = Literal["all", "11"]


def average_precision(
    scores: Float[np.ndarray, " n"], present: Bool[np.ndarray, " n"], *, points: Points = "all"
) -> float:
    """Area under the precision-recall curve with interpolated precision.

    The interpolated precision at a recall is the highest at that recall or above. "all" sums over
    every recall that occurs (VOC from 2010, and VISSL); "11" averages over recalls 0, 0.1, ..., 1
    (VOC 2007). scikit-learn's `average_precision_score` does not interpolate and is never above
    "all". Among equal scores negatives rank first, so that ties never raise the result.
    """
    if not present.any():
        raise ValueError("Average precision needs an example with the class.")
    order = _rank(scores, present)
    hits = np.cumsum(present[order])
    precision = hits / np.arange(1, len(order) + 1)
    recall = hits / hits[-1]
    best = np.maximum.accumulate(precision[::-1])[::-1]
    if points == "11":
        # A recall of 3 / 10 must reach 0.3 in spite of rounding.
        at = [np.searchsorted(recall, r - 1e-12) for r in np.linspace(0, 1, 11)]
        return float(np.mean([best[i] for i in at]))
    return float(np.sum(np.diff(recall, prepend=0.0) * best))


def resample_mean_average_precision(
    scores: Float[np.ndarray, "n c"],
    present: Bool[np.ndarray, "n c"],
    counted: Bool[np.ndarray, "n c"],
) -> Float[np.ndarray, "2 b"]:
    """Mean average precision at every recall and at 11, on each resample of the images.

    A resample is a count for each image, so the order of the scores is computed once. The mean of a
    resample is over the classes that it has images of, and NaN if there are none.
    """
    means = []
    for counts in resampled_counts(len(scores)):
        each = [
            _resampled_average_precision(np.flatnonzero(c)[_rank(s[c], p[c])], p, counts)
            for s, p, c in zip(scores.T, present.T, counted.T, strict=True)
        ]
        with np.errstate(invalid="ignore"):
            means.append(np.nansum(each, axis=0) / np.isfinite(each).sum(axis=0))
    return np.concatenate(means, axis=1)


def _rank(
    scores: Float[np.ndarray, " n"], present: Bool[np.ndarray, " n"]
) -> Int[np.ndarray, " n"]:
    """Images by falling score; for equal scores, those without the class come first."""
    return np.lexsort((present, -scores))


def _resampled_average_precision(
    order: Int[np.ndarray, " m"], present: Bool[np.ndarray, " n"], counts: Int[np.ndarray, "n b"]
) -> Float[np.ndarray, "2 b"]:
    """Average precision with these counts of images; NaN without an image of the class."""
    positive = np.flatnonzero(present[order])
    total = np.cumsum(counts[order], axis=0, dtype=np.int32)[positive]
    count = counts[order[positive]]
    hits = np.cumsum(count, axis=0)
    precision = hits / np.maximum(total, 1)
    best = np.maximum.accumulate(precision[::-1])[::-1]
    found = hits[-1]
    every_recall = (count * best).sum(axis=0) / np.maximum(found, 1)
    at = [(hits < (r - 1e-12) * found).sum(axis=0) for r in np.linspace(0, 1, 11)]
    eleven = np.mean([best[i, np.arange(len(i))] for i in at], axis=0)
    return np.where(found, [every_recall, eleven], np.nan)
