"""`shapes`: a picture set drawn by code, so that a first run needs no download.

Eight classes differ by outline and four by texture. Colour, place, size, turn, light, clutter and
background are drawn without regard to the class. Picture i is a pure function of (seed, split, i),
drawn in float64 so that another machine's last bit cannot change a byte.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from jaxtyping import Float64, UInt8

from sightline import random

Field = Float64[np.ndarray, "n h w"]
Draw = Callable[..., np.ndarray]

COUNTS = {"train": 4096, "test": 1024}
SIZE = 32
SUPERSAMPLE = 2  # samples per pixel and axis
GRID = 4  # the background is a smooth field through GRID x GRID random colours
CLUTTER = 5
CHUNK = 256


def _disc(x: Field, y: Field) -> Field:
    return np.hypot(x, y) - 0.9


def _ring(x: Field, y: Field) -> Field:
    return np.abs(np.hypot(x, y) - 0.68) - 0.24


def _square(x: Field, y: Field) -> Field:
    return np.maximum(np.abs(x), np.abs(y)) - 0.75


def _triangle(x: Field, y: Field) -> Field:
    side = math.sqrt(3) / 2
    return np.maximum(np.maximum(side * x - y / 2, -side * x - y / 2), y) - 0.55


def _star(x: Field, y: Field) -> Field:
    # Fold the five points onto one, whose edge runs from the tip to the notch.
    sector = 2 * math.pi / 5
    angle = np.abs(np.mod(np.arctan2(y, x), sector) - sector / 2)
    radius = np.hypot(x, y)
    px, py = radius * np.cos(angle), radius * np.sin(angle)
    notch, tip = 0.42, (1.05 * math.cos(sector / 2), 1.05 * math.sin(sector / 2))
    nx, ny = tip[1], notch - tip[0]
    length = math.hypot(nx, ny)
    return ((px - notch) * nx + py * ny) / length


def _cross(x: Field, y: Field) -> Field:
    x, y = np.abs(x), np.abs(y)
    return np.maximum(np.maximum(x, y) - 0.95, np.minimum(x, y) - 0.28)


def _crescent(x: Field, y: Field) -> Field:
    return np.maximum(np.hypot(x, y) - 0.95, 0.75 - np.hypot(x - 0.5, y))


def _heart(x: Field, y: Field) -> Field:
    # A square on its corner and a disc on each of its upper sides.
    y = y + 0.15
    half = 0.55
    square = (np.abs(x) + np.abs(y)) / math.sqrt(2) - half
    lobe = half / math.sqrt(2)
    return np.minimum(square, np.hypot(np.abs(x) - lobe, y - lobe) - half)


def _stripes(x: Field, y: Field) -> Field:
    return np.sin(x)


def _checks(x: Field, y: Field) -> Field:
    return 1.4 * np.sin(x) * np.sin(y)


def _dots(x: Field, y: Field) -> Field:
    return np.cos(x) + np.cos(y) - 0.9


def _waves(x: Field, y: Field) -> Field:
    return np.sin(x + 1.6 * np.sin(0.8 * y))


OUTLINES: dict[str, Callable[[Field, Field], Field]] = {
    "disc": _disc,
    "ring": _ring,
    "square": _square,
    "triangle": _triangle,
    "star": _star,
    "cross": _cross,
    "crescent": _crescent,
    "heart": _heart,
}
TEXTURES: dict[str, Callable[[Field, Field], Field]] = {
    "stripes": _stripes,
    "checks": _checks,
    "dots": _dots,
    "waves": _waves,
}
CLASSES = (*OUTLINES, *TEXTURES)


def shapes(
    split: str = "train", *, seed: int = 0, count: int | None = None, size: int = SIZE
) -> tuple[UInt8[np.ndarray, "n size size 3"], np.ndarray]:
    """Pictures and labels of one split; labels go round, so every stretch is balanced."""
    count = COUNTS[split] if count is None else count
    labels = np.arange(count) % len(CLASSES)
    pictures = np.empty((count, size, size, 3), np.uint8)
    for label, name in enumerate(CLASSES):
        mine = np.flatnonzero(labels == label)
        for start in range(0, len(mine), CHUNK):
            rows = mine[start : start + CHUNK]
            pictures[rows] = _draw(name, _numbers(seed, split, rows), size)
    return pictures, labels


def _numbers(seed: int, split: str, rows: np.ndarray) -> Draw:
    """Hands out the pictures' random numbers in the order they are asked for."""
    total = 3 * GRID**2 + 8 * CLUTTER + 64
    u = random.uniform(random.key(seed, "shapes", split), torch.from_numpy(rows), total).numpy()
    taken = 0

    def draw(low: float, high: float, *shape: int) -> np.ndarray:
        nonlocal taken
        count = math.prod(shape)
        part = u[:, taken : taken + count]
        taken += count
        assert part.shape[1] == count
        return (low + (high - low) * part).reshape(len(rows), *(shape or (1, 1)))

    return draw


def _draw(name: str, draw: Draw, size: int) -> np.ndarray:
    """Background, clutter, object and light, in that order."""
    side = size * SUPERSAMPLE
    axis = (np.arange(side) + 0.5) / side * 2 - 1
    y, x = np.meshgrid(axis, axis, indexing="ij")
    x, y = x[None], y[None]
    edge = 2 / size  # soft over one pixel

    canvas = _background(draw, axis)
    for _ in range(CLUTTER):
        _paint(canvas, _speck(draw, x, y, edge), draw(0, 1, 3))

    # The object.
    reach = draw(0.62, 0.92)
    turn = draw(0, 2 * math.pi)
    room = 0.35
    px, py = x - draw(-room, room), y - draw(-room, room)
    u, v = (np.cos(turn) * px + np.sin(turn) * py) / reach, (np.cos(turn) * py - np.sin(turn) * px) / reach
    colours = _contrasting(draw)
    if name in OUTLINES:
        inside = _cover(OUTLINES[name](u, v), edge)
        _paint(canvas, inside, colours[0])
    else:
        inside = _cover(_blob(draw, u, v), edge)
        pitch = draw(7.0, 11.0)
        tone = np.clip(0.5 + 2.0 * TEXTURES[name](pitch * u + draw(0, 6.28), pitch * v + draw(0, 6.28)), 0, 1)
        _paint(canvas, inside * tone, colours[0])
        _paint(canvas, inside * (1 - tone), colours[1])

    # Light falls from one side.
    towards = draw(0, 2 * math.pi)
    light = 1 + draw(0, 0.45) * (np.cos(towards) * x + np.sin(towards) * y)
    canvas *= light[..., None]
    canvas = canvas.reshape(len(canvas), size, SUPERSAMPLE, size, SUPERSAMPLE, 3).mean(axis=(2, 4))
    return (np.clip(canvas, 0, 1) * 255 + 0.5).astype(np.uint8)


def _cover(distance: Field, edge: float) -> Field:
    return np.clip(0.5 - distance / edge, 0, 1)


def _paint(canvas: np.ndarray, cover: Field, colour: np.ndarray) -> None:
    """Lay one colour over the canvas where `cover` is 1."""
    canvas += cover[..., None] * (colour.reshape(len(canvas), 1, 1, 3) - canvas)


def _background(draw: Draw, axis: np.ndarray) -> np.ndarray:
    """Random colours on a coarse grid, smoothly joined."""
    knots = draw(0.0, 1.0, GRID, GRID, 3)
    at = (axis + 1) / 2 * (GRID - 1)
    low = np.minimum(at.astype(int), GRID - 2)
    share = at - low
    share = share * share * (3 - 2 * share)
    weights = np.zeros((len(axis), GRID))
    weights[np.arange(len(axis)), low] = 1 - share
    weights[np.arange(len(axis)), low + 1] = share
    return np.einsum("ai,nijc,bj->nabc", weights, knots, weights, optimize=True)


def _speck(draw: Draw, x: Field, y: Field, edge: float) -> Field:
    """A small disc or a short stroke somewhere."""
    px, py = x - draw(-1, 1), y - draw(-1, 1)
    turn, long = draw(0, math.pi), draw(0.0, 0.4)
    u = np.cos(turn) * px + np.sin(turn) * py
    v = np.cos(turn) * py - np.sin(turn) * px
    beyond = np.maximum(np.abs(u) - long, 0)
    return _cover(np.hypot(beyond, v) - draw(0.04, 0.12), edge)


def _blob(draw: Draw, u: Field, v: Field) -> Field:
    """A round outline, dented at random, that tells nothing about the class."""
    angle = np.arctan2(v, u)
    wobble = sum(draw(0, 0.12) * np.cos(k * angle + draw(0, 2 * math.pi)) for k in (2, 3, 4))
    return np.hypot(u, v) - 0.85 * (1 + wobble)


def _contrasting(draw: Draw) -> tuple[np.ndarray, np.ndarray]:
    """A random colour and one far from it."""
    first = draw(0, 1, 3)
    other = np.where(first.mean(axis=1, keepdims=True) > 0.5, draw(0, 0.4, 3), draw(0.6, 1, 3))
    return first, other
