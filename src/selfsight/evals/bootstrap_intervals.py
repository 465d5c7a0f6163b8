"""95 % intervals by the bootstrap over test images: how much a number varies with the images.

Resampling n images with replacement and taking the mean has a known distribution if every value
is -1, 0 or 1: the quantiles of correctness, and of the difference of two encoders on the same
images, are therefore exact and need no random numbers. Other statistics are resampled with a fixed
seed. Every interval is deterministic.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, Int32

LEVEL = 0.95
RESAMPLES = 1000
MAX_INDICES = 1 << 23  # resampled at a time: 64 MiB


class Interval(NamedTuple):
    """A number and the ends of its interval."""

    value: float
    low: float
    high: float


def mean_interval(values: Float[np.ndarray, " n"]) -> Interval:
    """The mean over images."""
    if np.isin(values, (-1, 0, 1)).all():
        low, high = _exact_quantiles(values)
    else:
        means = [values[rows].mean(axis=1) for rows in resampled_rows(len(values))]
        low, high = _quantiles(np.concatenate(means)).tolist()
    return Interval(float(values.mean()), low, high)


def accuracy_interval(correct: Float[np.ndarray, " n"]) -> Interval:
    """The share of correct images.

    If all images have the same outcome, so has every resample; the end that the bootstrap cannot
    find is then the bound of Clopper and Pearson (1934).
    """
    interval, unseen = mean_interval(correct), unseen_share(len(correct))
    if interval.value == 1:
        return interval._replace(low=1 - unseen)
    return interval._replace(high=unseen) if interval.value == 0 else interval


def difference_interval(differences: Float[np.ndarray, " n"]) -> Interval:
    """The mean difference of two encoders on the same images, of shares or precisions.

    If they agree on every image, the ends bound how often they may disagree on other images.
    """
    interval, unseen = mean_interval(differences), unseen_share(len(differences))
    return interval if differences.any() else interval._replace(low=-unseen, high=unseen)


def unseen_share(n: int) -> float:
    """The largest share of a kind of image that n images may all miss, at half the error."""
    return 1 - ((1 - LEVEL) / 2) ** (1 / n)


def balanced_interval(y: Int[np.ndarray, " n"], values: Float[np.ndarray, " n"]) -> Interval:
    """The mean over classes of the mean of each class; a class missing in a resample is left out.

    Resampling images is resampling the counts of each (class, value), which are few.
    """
    if (values == values[0]).all():
        return accuracy_interval(values)
    cells, counts = np.unique(np.stack([y, values]), axis=1, return_counts=True)
    first = np.flatnonzero(np.diff(cells[0], prepend=-1))  # cells are sorted by class
    drawn = _generator().multinomial(len(y), counts / len(y), size=RESAMPLES).astype(np.float64)

    def mean_over_classes(count: Float[np.ndarray, "b c"]) -> Float[np.ndarray, " b"]:
        total = np.add.reduceat(count, first, axis=1)
        summed = np.add.reduceat(count * cells[1], first, axis=1)
        means = np.divide(summed, total, out=np.zeros_like(summed), where=total > 0)
        return means.sum(axis=1) / (total > 0).sum(axis=1)

    value = mean_over_classes(counts[None].astype(np.float64))[0]
    return Interval(float(value), *_quantiles(mean_over_classes(drawn)).tolist())


def replicate_interval(value: float, replicates: Float[np.ndarray, " b"]) -> Interval:
    """The interval of any statistic, from its values on the resamples of `resampled_rows`.

    The resamples of n images are always the same, so that replicates of two encoders on the same
    images are paired, and their difference is the replicate of the difference. A resample that
    does not define the statistic is NaN and left out.

    An average precision is higher on a resample, because an image that is drawn twice is right
    or wrong twice: its quantiles alone may not contain the number. So they are shifted by the
    difference between the number and the mean of the resamples (0 for a mean over images).
    """
    low, high = _quantiles(replicates) + value - np.nanmean(replicates)
    if np.nanmin(replicates) >= 0:
        low = max(low, 0.0)
    return Interval(float(value), float(low), float(high))


def resampled_rows(n: int) -> Iterator[Int[np.ndarray, "b n"]]:
    """Yield RESAMPLES rows of n image numbers with replacement, in blocks; the same for each n."""
    generator = _generator()
    for start in range(0, RESAMPLES, step := max(1, MAX_INDICES // n)):
        yield generator.integers(0, n, (min(step, RESAMPLES - start), n), dtype=np.int32)


def resampled_counts(n: int) -> Iterator[Int32[np.ndarray, "n b"]]:
    """Yield the resamples of `resampled_rows` as how often each image is drawn, in blocks."""
    for rows in resampled_rows(n):
        start = n * np.arange(len(rows))[:, None]
        counts = np.bincount((rows + start).ravel(), minlength=rows.size).reshape(rows.shape)
        yield np.ascontiguousarray(counts.T, np.int32)  # images are gathered, so they are the rows


def _generator() -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=0))


def _quantiles(replicates: Float[np.ndarray, " b"]) -> Float[np.ndarray, " 2"]:
    return np.nanquantile(replicates, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])


def _exact_quantiles(values: Float[np.ndarray, " n"]) -> tuple[float, float]:
    """Quantiles of the mean of n draws with replacement from values of -1, 0 and 1.

    The distribution of their sum is the n-th power of its characteristic function, transformed
    back.
    """
    n, lowest = len(values), int(values.min())
    counts = np.bincount((values - lowest).astype(np.int64))  # draws from 0, so that sums are too
    size = n * (len(counts) - 1) + 1
    length = 1 << (size - 1).bit_length()
    angle = -2j * np.pi * np.arange(length) / length
    one_draw = sum(count / n * np.exp(angle * draw) for draw, count in enumerate(counts))
    probability = np.fft.ifft(one_draw**n).real[:size].clip(min=0)
    cumulative = probability.cumsum() / probability.sum()
    low, high = np.searchsorted(cumulative, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return (n * lowest + int(low)) / n, (n * lowest + int(high)) / n
