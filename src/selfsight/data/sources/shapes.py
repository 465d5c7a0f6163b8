"""`shapes`: a generated data set, so that a first run needs no download.

The twelve classes differ by the motif or texture of an object. Color, position, size, outline,
rotation, distortion, light, clutter and background are independent of the class. Image i is a pure
function of (seed, split, i), computed in float64 so that rounding differences between machines
change no byte.
"""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from jaxtyping import Float64, Int64, UInt8

from selfsight import rng
from selfsight.data.cgroup_limits import available_cpus

Field = Float64[np.ndarray, "_ _ _"]  # one plane, or one per image
Sample = Callable[..., np.ndarray]  # sample(low, high, *shape): new random numbers per image

COUNTS = {"train": 4096, "test": 1024}
SIZE = 32  # pixels
CHUNK = 64  # images rendered at once: arrays that fit in the CPU's cache
SUPERSAMPLE = 2  # samples of the texture per pixel and axis
GRID = 3  # the background interpolates GRID x GRID random colors
CLUTTER = 4  # specks per image
DISTORTION = 0.05  # of the texture, in half sides: as on cloth
CHROMA = 0.15  # range of red, green and blue: color alone must not distinguish images


def _disc(x: Field, y: Field) -> Field:
    return np.hypot(x, y) - 0.7


def _ring(x: Field, y: Field) -> Field:
    return np.abs(np.hypot(x, y) - 0.6) - 0.22


def _cross(x: Field, y: Field) -> Field:
    x, y = np.abs(x), np.abs(y)
    return np.maximum(np.maximum(x, y) - 0.85, np.minimum(x, y) - 0.2)


def _star(x: Field, y: Field) -> Field:
    # Fold the five points onto one, whose edge runs from the notch to the tip.
    sector = 2 * math.pi / 5
    angle = np.abs(np.mod(np.arctan2(y, x), sector) - sector / 2)
    radius = np.hypot(x, y)
    notch, tip = 0.36, (0.95 * math.cos(sector / 2), 0.95 * math.sin(sector / 2))
    across, along = tip[1], notch - tip[0]
    offset = (radius * np.cos(angle) - notch) * across + radius * np.sin(angle) * along
    return offset / math.hypot(across, along)


def _lattice(motif: Callable[[Field, Field], Field]) -> Callable[[Field, Field], Field]:
    """Repeat a motif in rows, every other row shifted by half a step."""

    def texture(x: Field, y: Field) -> Field:
        x = x + np.mod(np.floor(y / 2), 2)
        return motif(np.mod(x, 2) - 1, np.mod(y, 2) - 1)

    return texture


def _triangles(x: Field, y: Field) -> Field:
    y = y / math.sqrt(3)
    return (np.mod(x / 1.9 - y / 2, 1) + np.mod(y, 1) - 1) * 0.8


def _bricks(x: Field, y: Field) -> Field:
    row, column = np.mod(y, 1.2), np.mod(x + np.mod(np.floor(y / 1.2), 2), 2)
    return np.minimum(np.minimum(row, 1.2 - row), np.minimum(column, 2 - column)) - 0.17


def _blotches(x: Field, y: Field) -> Field:
    x, y = 1.7 * x, 1.7 * y
    first = np.sin(1.9 * x + 1.3 * np.sin(1.1 * y))
    return (first + np.sin(1.7 * y + 1.5 * np.sin(1.3 * x + 1)) + np.sin(1.2 * (x - y))) / 5


def _stripes(x: Field, y: Field) -> Field:
    return np.abs(np.mod(x, 1.2) - 0.6) - 0.3


def _checks(x: Field, y: Field) -> Field:
    return np.sin(math.pi / 0.9 * x) * np.sin(math.pi / 0.9 * y) * 0.3


def _waves(x: Field, y: Field) -> Field:
    return np.abs(np.mod(x + 0.5 * np.sin(2.5 * y), 1.6) - 0.8) - 0.4


def _target(x: Field, y: Field) -> Field:
    return np.abs(np.mod(np.hypot(x, y), 1.2) - 0.6) - 0.3


def _spokes(x: Field, y: Field) -> Field:
    return np.sin(7 * np.arctan2(y, x)) * np.hypot(x, y) / 7


# Each is roughly the signed distance to the edge of the marks, negative inside.
TEXTURES: dict[str, Callable[[Field, Field], Field]] = {
    "dots": _lattice(_disc),
    "rings": _lattice(_ring),
    "crosses": _lattice(_cross),
    "stars": _lattice(_star),
    "triangles": _triangles,
    "bricks": _bricks,
    "blotches": _blotches,
    "stripes": _stripes,
    "checks": _checks,
    "waves": _waves,
    "target": _target,
    "spokes": _spokes,
}
CLASSES = tuple(TEXTURES)
CENTERED = ("target", "spokes")


def shapes(
    split: str = "train", *, seed: int = 0, count: int | None = None
) -> tuple[UInt8[np.ndarray, "n 32 32 3"], Int64[np.ndarray, " n"]]:
    """Images and labels of one split; labels cycle, so that every range is balanced."""
    count = COUNTS[split] if count is None else count
    labels = np.arange(count) % len(CLASSES)
    images = np.empty((count, SIZE, SIZE, 3), np.uint8)
    key = rng.key(seed, "shapes", split)

    def render(index: np.ndarray) -> None:
        name = CLASSES[labels[index[0]]]
        images[index] = _render(name, _random_numbers(key, index))

    of_classes = [np.flatnonzero(labels == label) for label in range(len(CLASSES))]
    chunks = [each[i : i + CHUNK] for each in of_classes for i in range(0, len(each), CHUNK)]
    with ThreadPoolExecutor(available_cpus()) as threads:  # NumPy releases the interpreter's lock
        list(threads.map(render, chunks))  # raises the error of a thread
    return images, labels


def load_shapes_split(
    split: str,
) -> tuple[list[str], np.ndarray, tuple[str, ...], Callable[[int], np.ndarray]]:
    """Names, labels, class names and a reader."""
    images, labels = shapes(split)
    names = [f"shapes/{split}/{i}" for i in range(len(labels))]
    return names, labels, CLASSES, images.__getitem__


def _random_numbers(key: rng.Key, index: np.ndarray) -> Sample:
    """A function that returns each image's random numbers, one after the other."""
    uniform = rng.uniform(key, torch.from_numpy(index), 3 * GRID**2 + 9 * CLUTTER + 40).numpy()
    used = 0

    def sample(low: float | int, high: float | int, *shape: int) -> np.ndarray:
        nonlocal used
        values = uniform[:, used : (used := used + math.prod(shape))]
        return (low + (high - low) * values).reshape(len(index), *(shape or (1, 1)))

    return sample


def _render(name: str, sample: Sample) -> UInt8[np.ndarray, "n h w 3"]:
    """Render background, clutter, object and light, in that order."""
    x, y = _coordinates(SIZE)
    canvas = _background(sample)
    for _ in range(CLUTTER):
        _paint(canvas, _speck(sample, x, y), _color(sample, 0.1, 0.9))
    inside, marks = _object(name, sample)
    dark, bright, swap = _color(sample, 0.1, 0.35), _color(sample, 0.65, 0.9), sample(0, 1, 1) < 0.5
    _paint(canvas, inside, np.where(swap, bright, dark))
    _paint(canvas, marks, np.where(swap, dark, bright))
    direction = sample(0, 2 * math.pi)
    light = 1 + sample(0, 0.45) * (np.cos(direction) * x + np.sin(direction) * y)
    return (np.clip(canvas * light[..., None], 0, 1) * 255 + 0.5).astype(np.uint8)


def _object(name: str, sample: Sample) -> tuple[Field, Field]:
    """The share of each pixel that the object covers, and that the marks on it cover."""
    size, angle = sample(0.75, 1.0), sample(0, 2 * math.pi)
    x0, y0 = sample(-0.25, 0.25), sample(-0.25, 0.25)
    x, y = _coordinates(SIZE)
    inside = _coverage(_contour(sample, (x - x0) / size, (y - y0) / size) * size)
    x, y = _coordinates(SIZE * SUPERSAMPLE)
    u, v = _rotate(x - x0, y - y0, angle)
    # Distorted, so that no two stripes match pixel by pixel.
    u, v = (
        u + DISTORTION * np.sin(sample(2, 4) * v + sample(-1, 1) * u + sample(0, 2 * math.pi)),
        v + DISTORTION * np.sin(sample(2, 4) * u + sample(-1, 1) * v + sample(0, 2 * math.pi)),
    )
    pitch, shift = sample(0.35, 0.5), 1.1 if name in CENTERED else 2.0
    distance = TEXTURES[name](u / pitch + sample(-shift, shift), v / pitch + sample(-shift, shift))
    marks = _coverage(distance * pitch * SUPERSAMPLE)
    blocks = marks.reshape(len(marks), SIZE, SUPERSAMPLE, SIZE, SUPERSAMPLE)
    return inside, inside * blocks.mean(axis=(2, 4))


def _coordinates(side: int) -> tuple[Field, Field]:
    axis = (np.arange(side) + 0.5) / side * 2 - 1
    y, x = np.meshgrid(axis, axis, indexing="ij")
    return x[None], y[None]


def _rotate(x: Field, y: Field, angle: np.ndarray) -> tuple[Field, Field]:
    cos, sin = np.cos(angle), np.sin(angle)
    return cos * x + sin * y, cos * y - sin * x


def _coverage(distance: Field) -> Field:
    """1 inside, 0 outside, and the covered share of a pixel on the edge."""
    return np.clip(0.5 - distance * (SIZE / 2), 0, 1)


def _paint(canvas: np.ndarray, coverage: Field, color: np.ndarray) -> None:
    canvas += coverage[..., None] * (color[:, None, None] - canvas)


def _color(sample: Sample, low: float, high: float) -> np.ndarray:
    return sample(low, high, 1) + sample(-CHROMA, CHROMA, 3)


def _background(sample: Sample) -> np.ndarray:
    """A random color that varies smoothly."""
    knots = _color(sample, 0.2, 0.8)[:, None, None] + sample(-0.2, 0.2, GRID, GRID, 3)
    at = (np.arange(SIZE) + 0.5) / SIZE * (GRID - 1)
    low = at.astype(int)
    share = at - low
    share = share * share * (3 - 2 * share)
    weights = np.zeros((SIZE, GRID))
    weights[np.arange(SIZE), low] = 1 - share
    weights[np.arange(SIZE), low + 1] = share
    rows = np.tensordot(weights, knots, (1, 1))  # [H, N, GRID, 3]
    return np.tensordot(rows, weights, (2, 1)).transpose(1, 0, 3, 2).copy()


def _speck(sample: Sample, x: Field, y: Field) -> Field:
    """A small disc or a short stroke at a random position."""
    u, v = _rotate(x - sample(-1, 1), y - sample(-1, 1), sample(0, math.pi))
    along = np.maximum(np.abs(u) - sample(0, 0.4), 0)
    return _coverage(np.hypot(along, v) - sample(0.04, 0.12))


def _contour(sample: Sample, x: Field, y: Field) -> Field:
    """A round contour with random dents, independent of the class."""
    angle, dents = np.arctan2(y, x), np.zeros(())
    for lobes in (2, 3, 4):
        dents = dents + sample(0, 0.1) * np.cos(lobes * angle + sample(0, 2 * math.pi))
    return np.hypot(x, y) - 1 - dents
