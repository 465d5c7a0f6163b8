"""Every random parameter of a view, from (seed, epoch, image, view number) alone.

Parameters are float64 and integers on the device of the index. Nothing here waits for the device:
no value is read back, and no shape depends on a value.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float32, Float64, Int64
from torch import Tensor

from selfsight import rng
from selfsight.views.spec import View

TRIES = 10

# Fixed places, so that turning one operation on or off leaves the draws of the others as they were.
COLUMNS = {
    "area": TRIES,
    "ratio": TRIES,
    "place": 2,
    "flip": 1,
    "jitter": 1,
    "factors": 4,
    "order": 4,
    "gray": 1,
    "blur": 1,
    "sigma": 1,
    "solarize": 1,
    "rotate": 1,
    "turns": 1,
    "cutout": 1,
    "hole": 2,
    "sobel": 1,
    "noise": 1,
}


def view_keys(seed: int, count: int) -> list[rng.Key]:
    """One key for each view number."""
    return [rng.key(seed, "view", number) for number in range(count)]


class Draws(NamedTuple):
    """One view's parameters for each image; a box is (top, left, height, width)."""

    box: Int64[Tensor, "n 4"]
    flip: Bool[Tensor, " n"]
    factors: Float64[Tensor, "n 4"]  # brightness, contrast, saturation: 1 is none; hue: 0 is none
    order: Int64[Tensor, "n k"]  # which factor comes first, second, ...; those never used left out
    gray: Bool[Tensor, " n"]
    sigma: Float64[Tensor, " n"]  # 0: not blurred
    solarize: Bool[Tensor, " n"]
    turns: Int64[Tensor, " n"]  # quarter turns; 0: not rotated
    hole: Int64[Tensor, "n 4"]  # without height and width: not cut out
    sobel: Bool[Tensor, " n"]
    grain: Float32[Tensor, "n c s s"] | None  # noise in units of pixels; None: the view has none


def draw(
    view: View,
    sizes: Int64[Tensor, "n 2"],
    index: Int64[Tensor, " n"],
    *,
    key: rng.Key,
    epoch: int | Tensor,
    channels: int,
) -> Draws:
    """The parameters of the view that this key stands for, for images of (height, width)."""
    numbers = rng.uniform(key, index, sum(COLUMNS.values()), epoch)
    u = dict(zip(COLUMNS, numbers.split(list(COLUMNS.values()), dim=1), strict=True))
    happens = {name: u[name][:, 0] < view.probability(name) for name in view.order}
    never = torch.zeros_like(index, dtype=torch.bool)

    sigma = _between(u["sigma"][:, 0], *view.blur_sigma)
    turns = 1 + (3 * u["turns"][:, 0]).long()
    hole = cutout_boxes(u["hole"], view.size, round(view.cutout_side * view.size))
    grain = None
    if view.noise > 0:
        other = (key[0] ^ 1, key[1])  # numbers of their own, unlike those above
        grain = rng.normal(other, index, channels * view.size**2, epoch).float()
        grain = grain * (view.noise_sigma * happens["noise"].float()[:, None])
        grain = grain.view(-1, channels, view.size, view.size)
    return Draws(
        box=crop_boxes(u["area"], u["ratio"], u["place"], sizes, view.scale, view.ratio),
        flip=happens.get("flip", never),
        factors=jitter_factors(u["factors"], happens.get("jitter", never), view.jitter),
        order=jitter_order(u["order"], view.jitter),
        gray=happens.get("gray", never),
        sigma=sigma * happens.get("blur", never),
        solarize=happens.get("solarize", never),
        turns=turns * happens.get("rotate", never),
        hole=hole * happens.get("cutout", never)[:, None],
        sobel=happens.get("sobel", never),
        grain=grain,
    )


def crop_boxes(
    area: Float64[Tensor, "n t"],
    ratio: Float64[Tensor, "n t"],
    place: Float64[Tensor, "n 2"],
    sizes: Int64[Tensor, "n 2"],
    scale_range: tuple[float, float],
    ratio_range: tuple[float, float],
) -> Int64[Tensor, "n 4"]:
    """torchvision's random resized crop: the first of the tries that fits, else the center.

    Takes numbers in [0, 1): an area and a log-ratio for each try, and a place for the box.
    """
    height, width = sizes.double()[:, :, None].unbind(1)  # [N, 1]
    areas = height * width * _between(area, *scale_range)
    ratios = torch.exp(_between(ratio, math.log(ratio_range[0]), math.log(ratio_range[1])))
    widths, heights = (areas * ratios).sqrt().round(), (areas / ratios).sqrt().round()
    fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)
    first = fits.int().argmax(dim=1, keepdim=True)

    low, high = ratio_range
    shape = width / height
    fallback_h = torch.where(shape < low, (width / low).round(), height)
    fallback_w = torch.where(shape > high, (height * high).round(), width)

    found = fits.any(dim=1, keepdim=True)
    h = torch.where(found, heights.gather(1, first), fallback_h)
    w = torch.where(found, widths.gather(1, first), fallback_w)
    room = torch.cat([height - h, width - w], dim=1)
    corner = torch.where(found, place * (room + 1), room / 2).floor()
    return torch.cat([corner, h, w], dim=1).long()


def cutout_boxes(place: Float64[Tensor, "n 2"], size: int, side: int) -> Int64[Tensor, "n 4"]:
    """Squares whose center is any pixel, cut at the border (DeVries and Taylor 2017)."""
    corner = (place * size).long() - side // 2
    start = corner.clamp(min=0)
    return torch.cat([start, (corner + side).clamp(max=size) - start], dim=1)


def jitter_factors(
    u: Float64[Tensor, "n 4"], happens: Bool[Tensor, " n"], strength: tuple[float, ...]
) -> Float64[Tensor, "n 4"]:
    """Uniform in the ranges of these strengths; no change where not drawn."""
    ranges = jitter_ranges(strength)
    columns = [_between(u[:, i], *ranges[i]) for i in range(4)]
    unchanged = (1.0, 1.0, 1.0, 0.0)
    pairs = zip(columns, unchanged, strict=True)
    return torch.stack([torch.where(happens, c, one) for c, one in pairs], dim=1)


def jitter_ranges(strength: tuple[float, ...]) -> list[tuple[float, float]]:
    """[max(0, 1 - s), 1 + s] for brightness, contrast and saturation, and [-s, s] for hue."""
    return [(max(0.0, 1 - s), 1 + s) for s in strength[:3]] + [(-strength[3], strength[3])]


def jitter_order(u: Float64[Tensor, "n 4"], strength: tuple[float, ...]) -> Int64[Tensor, "n k"]:
    """A random order of the factors that the view uses."""
    used = [s > 0 for s in strength]
    last = torch.ones_like(u[:, 0])
    columns = [u[:, i] if used[i] else last for i in range(4)]
    return torch.stack(columns, dim=1).argsort(dim=1, stable=True)[:, : sum(used)]


def _between(u: Tensor, low: float, high: float) -> Tensor:
    return low + (high - low) * u
