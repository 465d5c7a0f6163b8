"""The difference of two encoders: which is better, or that the test images cannot tell."""

from typing import NamedTuple

import numpy as np

from selfsight.evals.bootstrap_intervals import Interval, difference_interval, replicate_interval
from selfsight.evals.prediction_scores import PerImage


class Difference(NamedTuple):
    """The difference of two encoders with its interval; paired if their test images are the same.

    A result file has these fields.
    """

    difference: float
    low: float
    high: float
    n: int
    paired: bool

    def describe(self, a: str, b: str) -> str:
        """Say which is better and by how much, or that both are indistinguishable."""
        points, low, high = (round(100 * end, 1) + 0.0 for end in self[:3])  # never -0.0
        ends = f"95 % interval {low:+.1f} to {high:+.1f}{'' if self.paired else ', unpaired'}"
        if self.low <= 0 <= self.high:
            images = f"these {self.n:,} images"
            return f"{a} and {b} are indistinguishable on {images} ({points:+.1f} points, {ends})"
        word = "above" if self.difference > 0 else "below"
        return f"{a} is {abs(points):.1f} points {word} {b} ({ends}, {self.n:,} images)"


def paired_differences(a: PerImage, b: PerImage) -> dict[str, Difference]:
    """a - b for each number that both have, measured on the same images."""
    differences = {}
    for name in a.values.keys() & b.values.keys():
        differences[name] = difference_interval(a.values[name] - b.values[name])
    for name in a.replicates.keys() & b.replicates.keys():
        (value, *drawn), (other, *others) = a.replicates[name], b.replicates[name]
        differences[name] = replicate_interval(value - other, np.subtract(drawn, others))
    names = [name for name in (*a.values, *a.replicates) if name in differences]
    return {name: Difference(*differences[name], a.n, paired=True) for name in names}


def unpaired_difference(a: Interval, b: Interval, n: int) -> Difference:
    """a - b, measured on different images (Newcombe 1998, method 10); n of them at least."""
    value = a.value - b.value
    low = value - np.hypot(a.value - a.low, b.high - b.value)
    high = value + np.hypot(a.high - a.value, b.value - b.low)
    return Difference(value, float(low), float(high), n, paired=False)
