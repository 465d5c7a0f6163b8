"""RandAugment (Cubuk et al. 2019, arXiv:1909.13719) as timm applies it, batched on the device.

Two operations for each image, each of 15 kinds and done with probability 1/2, with a magnitude
drawn about the given one ("inc1": more magnitude is always more change). Draws are keyed by
image, so the images are the same on any number of processes. Values are in [0, 1]; operations
that PIL defines on bytes round to bytes here too. Turned and shifted images are filled with the
mean, and read bilinearly, where timm takes bilinear or bicubic at random.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from selfsight import rng
from selfsight.views.color import LUMA, constant

LAYERS = 2
SHARE = 0.5
HIGHEST = 10.0  # of timm's scale of magnitudes
OPERATIONS = (
    "autocontrast",
    "equalize",
    "invert",
    "rotate",
    "posterize",
    "solarize",
    "solarize_add",
    "color",
    "contrast",
    "brightness",
    "sharpness",
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
)
MOVES = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
Maps = Float[Tensor, "n c h w"]
Row = Float[Tensor, " n"]


def rand_augment(
    x: Maps,
    index: Int64[Tensor, " n"],
    *,
    magnitude: float,
    std: float,
    mean: tuple[float, ...],
    seed: int,
    at: int | Tensor = 0,
) -> Maps:
    """The images after two random operations each; `at` is a number, or one for each row."""
    draws = rng.uniform(rng.key(seed, "rand_augment"), index, 3 * LAYERS, at)
    spread = rng.normal(rng.key(seed, "rand_augment", "magnitude"), index, LAYERS, at)
    level = (magnitude + std * spread).clamp(0, HIGHEST) / HIGHEST  # [N, layers], share of most
    for layer in range(LAYERS):
        kind, done, sign = draws[:, 3 * layer : 3 * layer + 3].unbind(1)
        number = (kind * len(OPERATIONS)).long()
        number = torch.where(done < SHARE, number, -1)
        sign = torch.where(sign < 0.5, 1.0, -1.0)
        out = x.clone()
        for n, name in enumerate(OPERATIONS):
            rows = (number == n).nonzero()[:, 0]
            if len(rows):
                out[rows] = apply(name, x[rows], level[rows, layer], sign[rows], mean)
        x = out
    return x


def apply(
    name: str,
    x: Maps,
    level: Float[Tensor, " n"],
    sign: Float[Tensor, " n"],
    mean: tuple[float, ...],
) -> Maps:
    """One operation, each image with its own level (0 to 1) and sign."""
    level, sign = level.to(x.dtype), sign.to(x.dtype)
    if name in MOVES:
        return moved(x, matrices(name, level * sign), mean)
    if name in ("color", "contrast", "brightness", "sharpness"):
        factor = (1 + 0.9 * level * sign).clamp(min=0.1)[:, None, None, None]
        return (base(name, x) * (1 - factor) + x * factor).clamp(0, 1)
    byte = (x * 255).round()
    match name:
        case "autocontrast":
            low, high = byte.amin((2, 3), keepdim=True), byte.amax((2, 3), keepdim=True)
            flat = high <= low
            byte = torch.where(flat, byte, (byte - low) * 255 / (high - low).masked_fill(flat, 1))
            byte = byte.floor()
        case "equalize":
            byte = equalized(byte)
        case "invert":
            byte = 255 - byte
        case "posterize":
            kept = (4 - (level * 4).floor())[:, None, None, None]  # bits
            step = 2 ** (8 - kept)
            byte = (byte / step).floor() * step
        case "solarize":
            threshold = (256 - (level * 256).floor())[:, None, None, None]
            byte = torch.where(byte < threshold, byte, 255 - byte)
        case "solarize_add":
            added = (level * 110).floor()[:, None, None, None]
            byte = torch.where(byte < 128, (byte + added).clamp(max=255), byte)
    return byte / 255


def base(name: str, x: Maps) -> Maps:
    """What an enhancement blends the image with."""
    if name == "brightness":
        return torch.zeros_like(x)
    if name == "sharpness":
        return smoothed(x)
    luma = constant(LUMA if x.shape[1] == 3 else (1 / x.shape[1],) * x.shape[1], x)
    gray = torch.einsum("nchw,c->nhw", x, luma)[:, None]
    return gray.expand_as(x) if name == "color" else gray.mean((2, 3), keepdim=True).expand_as(x)


def smoothed(x: Maps) -> Maps:
    """PIL's smoothing filter, 5 in the middle of 13; the border stays."""
    kernel = x.new_full((x.shape[1], 1, 3, 3), 1 / 13)
    kernel[:, :, 1, 1] = 5 / 13
    out = x.clone()
    out[:, :, 1:-1, 1:-1] = F.conv2d(x, kernel, groups=x.shape[1])
    return out


def equalized(byte: Maps) -> Maps:
    """Each channel's bytes spread evenly, as PIL does by its histogram."""
    n, c, h, w = byte.shape
    flat = byte.long().reshape(n * c, h * w)
    counts = torch.zeros(n * c, 256, dtype=torch.long, device=byte.device)
    counts.scatter_add_(1, flat, torch.ones_like(flat))
    highest = 255 - (counts > 0).flip(1).int().argmax(dim=1, keepdim=True)
    step = (counts.sum(dim=1, keepdim=True) - counts.gather(1, highest)) // 255
    below = counts.cumsum(dim=1) - counts
    table = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255)
    table = torch.where(step > 0, table, torch.arange(256, device=byte.device))
    return table.gather(1, flat).view(n, c, h, w).to(byte.dtype)


def matrices(name: str, value: Row) -> Float[Tensor, "n 2 3"]:
    """Where each place of the new image lies in the old, in shares of half its side."""
    one, none = torch.ones_like(value), torch.zeros_like(value)
    match name:
        case "rotate":
            cos, sin = (value * math.radians(30)).cos(), (value * math.radians(30)).sin()
            rows = [[cos, -sin, none], [sin, cos, none]]
        case "shear_x":  # PIL shears about the upper left corner
            rows = [[one, 0.3 * value, 0.3 * value], [none, one, none]]
        case "shear_y":
            rows = [[one, none, none], [0.3 * value, one, 0.3 * value]]
        case "translate_x":
            rows = [[one, none, 2 * 0.45 * value], [none, one, none]]
        case _:
            rows = [[one, none, none], [none, one, 2 * 0.45 * value]]
    return torch.stack([torch.stack(row, dim=1) for row in rows], dim=1)


def moved(x: Maps, matrix: Float[Tensor, "n 2 3"], mean: tuple[float, ...]) -> Maps:
    """The image read at other places; what lies outside is the mean."""
    fill = constant(mean if len(mean) == x.shape[1] else mean[:1] * x.shape[1], x)[:, None, None]
    grid = F.affine_grid(matrix, list(x.shape), align_corners=False)
    seen = F.grid_sample(x - fill, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return seen + fill
