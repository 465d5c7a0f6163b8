"""Sample the random parameters of a view: crop boxes, jitter factors, flips, blur widths, ...

They depend only on (seed, epoch, image index, view number), and are float64 or integer tensors on
the device of the index. The host never waits for the device: no value is read back, and no shape
depends on a value.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float32, Float64, Int64
from torch import Tensor

from selfsight import rng
from selfsight.views.view_settings import View

MAX_CROP_TRIES = 10

# Uniform numbers per parameter. The columns are fixed, so that enabling or disabling one operation
# does not change the random numbers of the others.
COLUMNS = {
    "area": MAX_CROP_TRIES,
    "ratio": MAX_CROP_TRIES,
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
    "second_crop": 1,
}
# Keys of random numbers that few views need, as a change to the view's key.
NOISE_KEY, SECOND_CROP_KEY = 1, 2


def view_keys(seed: int, count: int) -> list[rng.Key]:
    """Return one random key per view number."""
    return [rng.key(seed, "view", number) for number in range(count)]


class ViewParams(NamedTuple):
    """Parameters of one view for each image; a box is (top, left, height, width)."""

    crop_box: Int64[Tensor, "n 4"]
    flip: Bool[Tensor, " n"]
    jitter_factors: Float64[Tensor, "n 4"]  # brightness, contrast, saturation (1: none), hue (0)
    jitter_order: Int64[Tensor, "n k"]  # indices of the k factors in use, first to last
    gray: Bool[Tensor, " n"]
    blur_sigma: Float64[Tensor, " n"]  # 0: not blurred
    solarize: Bool[Tensor, " n"]
    quarter_turns: Int64[Tensor, " n"]  # 0: not rotated
    cutout_box: Int64[Tensor, "n 4"]  # zero height and width: no cutout
    sobel: Bool[Tensor, " n"]
    noise: Float32[Tensor, "n c s s"] | None  # added to the pixels; None: the view has no noise
    second_crop_box: Int64[Tensor, "n 4"] | None  # in the view; None: it is never cropped again


def sample_view_params(
    view: View,
    sizes: Int64[Tensor, "n 2"],
    index: Int64[Tensor, " n"],
    *,
    key: rng.Key,
    epoch: int | Tensor,
    channels: int,
    first_key: rng.Key | None = None,
) -> ViewParams:
    """Sample the parameters of the view with this key, for images of these (height, width).

    `first_key` is that of the first view, whose crop a view may share.
    """
    u = _sample_columns(key, index, epoch)
    crop_u = u
    if view.crop == "shared" and first_key is not None:
        crop_u = _sample_columns(first_key, index, epoch)
    applied = {name: u[name][:, 0] < view.probability(name) for name in view.order}
    never = torch.zeros_like(index, dtype=torch.bool)

    blur_sigma = _between(u["sigma"][:, 0], *view.blur_sigma)
    quarter_turns = 1 + (3 * u["turns"][:, 0]).long()
    cutout_box = sample_cutout_boxes(u["hole"], view.size, round(view.cutout_side * view.size))
    noise = None
    if view.noise > 0:
        noise_key = (key[0] ^ NOISE_KEY, key[1])
        noise = rng.normal(noise_key, index, channels * view.size**2, epoch).float()
        noise = noise * (view.noise_sigma * applied["noise"].float()[:, None])
        noise = noise.view(-1, channels, view.size, view.size)
    second_crop_box = None
    if view.second_crop > 0:
        second = _sample_columns((key[0] ^ SECOND_CROP_KEY, key[1]), index, epoch)
        whole = torch.full_like(sizes, view.size)
        box = _crop_boxes(second, whole, (view.scale, view.ratio))
        unchanged = torch.cat([torch.zeros_like(whole), whole], dim=1)
        second_crop_box = torch.where(applied["second_crop"][:, None], box, unchanged)
    return ViewParams(
        crop_box=_crop_boxes(crop_u, sizes, view.crop_ranges),
        flip=applied.get("flip", never),
        jitter_factors=sample_jitter_factors(
            u["factors"], applied.get("jitter", never), view.jitter
        ),
        jitter_order=sample_jitter_order(u["order"], view.jitter),
        gray=applied.get("gray", never),
        blur_sigma=blur_sigma * applied.get("blur", never),
        solarize=applied.get("solarize", never),
        quarter_turns=quarter_turns * applied.get("rotate", never),
        cutout_box=cutout_box * applied.get("cutout", never)[:, None],
        sobel=applied.get("sobel", never),
        noise=noise,
        second_crop_box=second_crop_box,
    )


def _sample_columns(
    key: rng.Key, index: Int64[Tensor, " n"], epoch: int | Tensor
) -> dict[str, Float64[Tensor, "n _"]]:
    """Return the uniform numbers of each parameter."""
    numbers = rng.uniform(key, index, sum(COLUMNS.values()), epoch)
    return dict(zip(COLUMNS, numbers.split(list(COLUMNS.values()), dim=1), strict=True))


def _crop_boxes(
    u: dict[str, Tensor],
    sizes: Int64[Tensor, "n 2"],
    ranges: tuple[tuple[float, float], tuple[float, float]],
) -> Int64[Tensor, "n 4"]:
    return sample_crop_boxes(u["area"], u["ratio"], u["place"], sizes, *ranges)


def sample_crop_boxes(
    area: Float64[Tensor, "n t"],
    ratio: Float64[Tensor, "n t"],
    place: Float64[Tensor, "n 2"],
    sizes: Int64[Tensor, "n 2"],
    scale_range: tuple[float, float],
    ratio_range: tuple[float, float],
) -> Int64[Tensor, "n 4"]:
    """Turn uniform numbers into torchvision's random resized crop.

    The first of the tries that fits inside the image is used, else a center crop. `area` and
    `ratio` hold one number per try; `place` is the position of the box in the remaining room.
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

    any_fits = fits.any(dim=1, keepdim=True)
    h = torch.where(any_fits, heights.gather(1, first), fallback_h)
    w = torch.where(any_fits, widths.gather(1, first), fallback_w)
    room = torch.cat([height - h, width - w], dim=1)
    corner = torch.where(any_fits, place * (room + 1), room / 2).floor()
    return torch.cat([corner, h, w], dim=1).long()


def sample_cutout_boxes(
    place: Float64[Tensor, "n 2"], size: int, side: int
) -> Int64[Tensor, "n 4"]:
    """Turn uniform numbers into squares centered at any pixel (DeVries and Taylor 2017).

    The part outside the image is cut off.
    """
    corner = (place * size).long() - side // 2
    start = corner.clamp(min=0)
    return torch.cat([start, (corner + side).clamp(max=size) - start], dim=1)


def sample_jitter_factors(
    u: Float64[Tensor, "n 4"], applied: Bool[Tensor, " n"], strength: tuple[float, ...]
) -> Float64[Tensor, "n 4"]:
    """Turn uniform numbers into factors within `jitter_ranges`; identity where not applied."""
    ranges = jitter_ranges(strength)
    columns = [_between(u[:, i], *ranges[i]) for i in range(4)]
    unchanged = (1.0, 1.0, 1.0, 0.0)
    pairs = zip(columns, unchanged, strict=True)
    return torch.stack([torch.where(applied, c, identity) for c, identity in pairs], dim=1)


def jitter_ranges(strength: tuple[float, ...]) -> list[tuple[float, float]]:
    """Return [max(0, 1 - s), 1 + s] for brightness, contrast, saturation and [-s, s] for hue."""
    return [(max(0.0, 1 - s), 1 + s) for s in strength[:3]] + [(-strength[3], strength[3])]


def sample_jitter_order(
    u: Float64[Tensor, "n 4"], strength: tuple[float, ...]
) -> Int64[Tensor, "n k"]:
    """Turn uniform numbers into a random order of the factors with a strength above 0."""
    used = [s > 0 for s in strength]
    last = torch.ones_like(u[:, 0])
    columns = [u[:, i] if used[i] else last for i in range(4)]
    return torch.stack(columns, dim=1).argsort(dim=1, stable=True)[:, : sum(used)]


def _between(u: Tensor, low: float, high: float) -> Tensor:
    return low + (high - low) * u
