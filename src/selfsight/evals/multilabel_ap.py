"""Average precision of a ranking, as Pascal VOC and VISSL count it."""

from typing import Literal

import numpy as np
from jaxtyping import Bool, Float

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
    order = np.lexsort((present, -scores))
    hits = np.cumsum(present[order])
    precision = hits / np.arange(1, len(order) + 1)
    recall = hits / hits[-1]
    best = np.maximum.accumulate(precision[::-1])[::-1]
    if points == "11":
        # A recall of 3 / 10 must reach 0.3 in spite of rounding.
        at = [np.searchsorted(recall, r - 1e-12) for r in np.linspace(0, 1, 11)]
        return float(np.mean([best[i] for i in at]))
    return float(np.sum(np.diff(recall, prepend=0.0) * best))
