"""What kind of images a data set has, from a sample: photographs, or others with statistics."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from selfsight.data.decoders.decode_image import Header, decode, read_header
from selfsight.data.decoders.scientific_images import Dtype, SampleFormat
from selfsight.data.eval_transform import HIGH, LOW
from selfsight.data.sources.source import Source
from selfsight.data.storage_plan import read_sample
from selfsight.errors import UserError

PEEKED = 8  # images whose headers decide whether a data set may hold others than photographs
SAMPLED = 128  # images that statistics are measured on
VALUES = 1024  # pixels of an image that are measured
TAIL = 0.1  # per cent of the values at either end that may be outliers
FAR = 3.0  # an outlier is so many times the range of the others away from them
MIN_TURNED = 16  # images below which nothing is said about their orientation
SIGNIFICANT = 4.0  # standard errors from 0
THUMBNAIL = 16  # side of the images that are compared with mirror images
MIN_COMPARED = 64  # images below which nothing is said about their mirror images


class PixelKind(NamedTuple):
    """Type, channels and statistics of images that are not photographs."""

    channels: int
    dtype: Dtype
    is_color: bool  # red, green and blue
    low: tuple[float, ...]  # values that become 0 and 1
    high: tuple[float, ...]
    mean: tuple[float, ...]  # of the scaled pixels
    std: tuple[float, ...]
    has_up: bool  # top and bottom, or rows and columns, differ over all images

    @property
    def name(self) -> str:
        """A short name, such as "float32, 6 channels"."""
        return SampleFormat(0, 0, self.channels, self.dtype, self.is_color).name


class SampledPixels(NamedTuple):
    """Some pixels of an image, and how its sides differ."""

    samples: SampleFormat
    values: np.ndarray  # [P, C]
    tilt: np.ndarray  # [3, C]: top to bottom, left to right, rows to columns


def has_mirror_images(thumbnails: Sequence[np.ndarray]) -> bool:
    """Whether the mirror image of an image could be another one; thumbnails are gray [S, S].

    Mirrored photographs are as near to the other photographs as they are themselves. Mirrored
    digits or letters are farther from the others: there is nothing like them.
    """
    if len(thumbnails) < MIN_COMPARED:
        return True
    x = np.stack(thumbnails).astype(np.float64)  # [N, S, S]
    farther = _nearest(x[:, :, ::-1], x) > _nearest(x, x)  # [N]
    error = 0.5 / math.sqrt(len(x))  # of the share, if each is as likely to be farther as nearer
    return bool(farther.mean() <= 0.5 + SIGNIFICANT * error)


def _nearest(x: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Squared distance of each image to the nearest of the others, its own number left out."""
    a, b = x.reshape(len(x), -1), others.reshape(len(x), -1)
    square = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2 * a @ b.T  # [N, N]
    np.fill_diagonal(square, np.inf)
    return np.asarray(square.min(axis=1))


def sample_pixels(samples: SampleFormat, pixels: np.ndarray) -> SampledPixels:
    """Select some pixels of an image [H, W, C] and compare its halves."""
    x = pixels.astype(np.float64)
    height, width, channels = x.shape
    spread = x.std(axis=(0, 1)) + 1e-12
    rows, columns = x.mean(axis=1), x.mean(axis=0)  # [H, C], [W, C]
    down = rows[: height // 2].sum(axis=0) / max(1, height // 2) - rows[height // 2 :].mean(axis=0)
    across = columns[: width // 2].sum(axis=0) / max(1, width // 2)
    across -= columns[width // 2 :].mean(axis=0)
    steps = [np.abs(np.diff(x, axis=axis)).sum(axis=(0, 1)) + 1e-12 for axis in (0, 1)]
    tilt = np.stack([down / spread, across / spread, np.log(steps[0] / steps[1])])
    flat = pixels.reshape(-1, channels)
    return SampledPixels(samples, flat[:: max(1, len(flat) // VALUES)][:VALUES], tilt)


def choose_kind(
    formats: Sequence[SampleFormat | None],
) -> tuple[tuple[int, Dtype] | None, str]:
    """Channels and type of most images, None for photographs; and a sentence on the others."""
    counts = Counter((f.channels, f.dtype) for f in formats if f is not None)
    total = len(formats)
    if 2 * counts.total() <= total:
        deep = sum(n for (channels, _), n in counts.items() if channels in (1, 3))
        if not deep:
            return None, ""
        return None, (
            f"{deep} of {total} images have more than 8 bits per channel and are reduced to 8, as "
            "the others have. Put them into a folder of their own to keep their depth."
        )
    kind, count = counts.most_common(1)[0]
    note = ""
    if count < total:
        name = SampleFormat(0, 0, *kind, is_color=False).name
        note = (
            f"{count} of {total} images are {name}; the other {total - count} differ in type or "
            "channels and are left out. Put them into a folder of their own."
        )
    return kind, note


def summarize_kind(sampled: Sequence[SampledPixels]) -> PixelKind:
    """Measure the range, mean and std of each channel of images of one kind."""
    channels, dtype = sampled[0].samples.channels, sampled[0].samples.dtype
    values = np.concatenate([s.values for s in sampled]).astype(np.float64)  # [P, C]
    low, high = LOW, HIGH
    if dtype != "uint8":
        ends = [_find_range(values[:, c]) for c in range(channels)]
        low, high = tuple(a for a, _ in ends), tuple(b for _, b in ends)
    scaled = (values - np.array(low)) / (np.array(high) - np.array(low))
    std = scaled.std(axis=0)
    return PixelKind(
        channels=channels,
        dtype=dtype,
        is_color=all(s.samples.is_color for s in sampled),
        low=low,
        high=high,
        mean=_rounded(scaled.mean(axis=0)),
        std=_rounded(np.where(std > 1e-9, std, 1.0)),
        has_up=_has_up(np.stack([s.tilt for s in sampled])),
    )


def find_kind(source: Source) -> PixelKind | None:
    """Find the kind of the images of a source; None for photographs, which costs few headers."""
    headers = [_try_header(data) for data in read_sample(source, PEEKED)]
    kind, _ = choose_kind([h.samples for h in headers if h is not None])
    if kind is None:
        return None
    sampled = [_try_sample(data, kind) for data in read_sample(source, SAMPLED)]
    known = [s for s in sampled if s is not None]
    if not known:
        raise UserError(
            f"None of {len(sampled)} sampled images of {source.name} can be decoded, though their "
            "headers can be read. `selfsight doctor DATA` shows why; values that are not finite "
            "(NaN) are one reason."
        )
    return summarize_kind(known)


def _try_header(data: bytes | np.ndarray) -> Header | None:
    try:
        return read_header(data)
    except ValueError:
        return None


def _try_sample(data: bytes | np.ndarray, kind: tuple[int, Dtype]) -> SampledPixels | None:
    try:
        header = read_header(data)
        if header.samples is None or (header.samples.channels, header.samples.dtype) != kind:
            return None
        pixels = decode(data, store_size=None, channels=kind[0], dtype=kind[1])
        return sample_pixels(header.samples, pixels)
    except ValueError:
        return None


def _find_range(values: np.ndarray) -> tuple[float, float]:
    """The lowest and the highest value, without outliers such as dead pixels."""
    least, most = float(values.min()), float(values.max())
    first, last = np.percentile(values, (TAIL, 100 - TAIL))
    room = FAR * (last - first)
    low = least if first - least <= room else float(first)
    high = most if most - last <= room else float(last)
    return (low, high) if low < high else (low, low + 1.0)


def _has_up(tilt: np.ndarray) -> bool:
    """Whether the mean tilt of a channel differs from 0; tilt is [N, 3, C]."""
    if len(tilt) < MIN_TURNED:
        return True
    error = tilt.std(axis=0, ddof=1) / math.sqrt(len(tilt)) + 1e-12
    return bool((np.abs(tilt.mean(axis=0)) > SIGNIFICANT * error).any())


def _rounded(values: np.ndarray) -> tuple[float, ...]:
    """Numbers that a person can read in recipe.json."""
    return tuple(float(f"{v:.6g}") for v in values)
