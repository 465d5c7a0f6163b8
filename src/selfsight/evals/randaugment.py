"""RandAugment (Cubuk et al. 2019, arXiv:1909.13719) with timm's operations, batched on the device.

Each image gets two of 15 operations, each applied with probability 1/2, with a magnitude sampled
around the given one ("inc1": a higher magnitude always changes more). timm works on PIL images on
the host and samples from Python's and numpy's global state; here samples depend on (seed, epoch,
image), equal on any number of processes. Values are in [0, 1]; operations that PIL defines on bytes
round to bytes. Rotated, sheared and translated images are filled with the mean and resampled
bilinearly, where timm picks bilinear or bicubic at random.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from selfsight import rng
from selfsight.evals.classifier_settings import MAX_MAGNITUDE
from selfsight.views.color import LUMA, constant

NUM_OPERATIONS = 2
PROBABILITY = 0.5
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
GEOMETRIC = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
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
    epoch: int | Tensor = 0,
) -> Maps:
    """Apply two random operations to each image; `epoch` is one number, or one per image."""
    u = rng.uniform(rng.key(seed, "rand_augment"), index, 3 * NUM_OPERATIONS, epoch)
    noise = rng.normal(rng.key(seed, "rand_augment", "magnitude"), index, NUM_OPERATIONS, epoch)
    level = (magnitude + std * noise).clamp(0, MAX_MAGNITUDE) / MAX_MAGNITUDE  # [N, 2], in [0, 1]
    operation, applied, sign = u.view(len(x), NUM_OPERATIONS, 3).unbind(2)  # [N, 2]
    number = (operation * len(OPERATIONS)).long()
    number = torch.where(applied < PROBABILITY, number, len(OPERATIONS))
    sign = torch.where(sign < 0.5, 1.0, -1.0)
    # The rows of each operation, one operation after the other. The host waits for the device only
    # once, to read how many rows each has.
    order = number.sort(dim=0, stable=True).indices
    counts = F.one_hot(number, len(OPERATIONS) + 1).sum(dim=0).tolist()
    for i in range(NUM_OPERATIONS):
        out = x.clone()
        for name, rows in zip(OPERATIONS, order[:, i].split(counts[i]), strict=False):
            if len(rows):
                out[rows] = apply(name, x[rows], level[rows, i], sign[rows, i], mean)
        x = out
    return x


def apply(
    name: str,
    x: Maps,
    level: Float[Tensor, " n"],
    sign: Float[Tensor, " n"],
    mean: tuple[float, ...],
) -> Maps:
    """Apply one operation, with a level (0 to 1) and a sign for each image."""
    level, sign = level.to(x.dtype), sign.to(x.dtype)
    if name in GEOMETRIC:
        return affine(x, affine_matrices(name, level * sign), mean)
    if name in ("color", "contrast", "brightness", "sharpness"):
        factor = (1 + 0.9 * level * sign).clamp(min=0.1)[:, None, None, None]
        return (blend_target(name, x) * (1 - factor) + x * factor).clamp(0, 1)
    byte = (x * 255).round()
    match name:
        case "autocontrast":
            low, high = byte.amin((2, 3), keepdim=True), byte.amax((2, 3), keepdim=True)
            flat = high <= low
            byte = torch.where(flat, byte, (byte - low) * 255 / (high - low).masked_fill(flat, 1))
            byte = byte.floor()
        case "equalize":
            byte = equalize(byte)
        case "invert":
            byte = 255 - byte
        case "posterize":
            bits = (4 - (level * 4).floor())[:, None, None, None]
            step = 2 ** (8 - bits)
            byte = (byte / step).floor() * step
        case "solarize":
            threshold = (256 - (level * 256).floor())[:, None, None, None]
            byte = torch.where(byte < threshold, byte, 255 - byte)
        case "solarize_add":
            added = (level * 110).floor()[:, None, None, None]
            byte = torch.where(byte < 128, (byte + added).clamp(max=255), byte)
    return byte / 255


def blend_target(name: str, x: Maps) -> Maps:
    """The image with which PIL's enhancement blends."""
    if name == "brightness":
        return torch.zeros_like(x)
    if name == "sharpness":
        return smooth(x)
    luma = constant(LUMA if x.shape[1] == 3 else (1 / x.shape[1],) * x.shape[1], x)
    gray = torch.einsum("nchw,c->nhw", x, luma)[:, None]
    return gray.expand_as(x) if name == "color" else gray.mean((2, 3), keepdim=True).expand_as(x)


def smooth(x: Maps) -> Maps:
    """PIL's smoothing filter: 3 x 3, 5/13 in the center; border pixels are not changed."""
    kernel = x.new_full((x.shape[1], 1, 3, 3), 1 / 13)
    kernel[:, :, 1, 1] = 5 / 13
    out = x.clone()
    out[:, :, 1:-1, 1:-1] = F.conv2d(x, kernel, groups=x.shape[1])
    return out


def equalize(byte: Maps) -> Maps:
    """Equalize the histogram of each channel, as PIL does."""
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


def affine_matrices(name: str, value: Row) -> Float[Tensor, "n 2 3"]:
    """Map output positions to input positions; the image spans -1 to 1."""
    one, zero = torch.ones_like(value), torch.zeros_like(value)
    match name:
        case "rotate":
            cos, sin = (value * math.radians(30)).cos(), (value * math.radians(30)).sin()
            rows = [[cos, -sin, zero], [sin, cos, zero]]
        case "shear_x":  # PIL shears about the upper left corner
            rows = [[one, 0.3 * value, 0.3 * value], [zero, one, zero]]
        case "shear_y":
            rows = [[one, zero, zero], [0.3 * value, one, 0.3 * value]]
        case "translate_x":
            rows = [[one, zero, 2 * 0.45 * value], [zero, one, zero]]
        case _:
            rows = [[one, zero, zero], [zero, one, 2 * 0.45 * value]]
    return torch.stack([torch.stack(row, dim=1) for row in rows], dim=1)


def affine(x: Maps, matrix: Float[Tensor, "n 2 3"], mean: tuple[float, ...]) -> Maps:
    """Resample the image at other positions; the outside is filled with the mean."""
    fill = constant(mean if len(mean) == x.shape[1] else mean[:1] * x.shape[1], x)[:, None, None]
    grid = F.affine_grid(matrix, list(x.shape), align_corners=False)
    sampled = F.grid_sample(
        x - fill, grid, mode="bilinear", padding_mode="zeros", align_corners=False
    )
    return sampled + fill
