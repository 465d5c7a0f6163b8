"""Operations that move or mix pixels, each with its own parameter for every image."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from selfsight.views.color import constant
from selfsight.views.crop import resample


def flip(x: Float[Tensor, "n c h w"], chosen: Bool[Tensor, " n"]) -> Float[Tensor, "n c h w"]:
    """The chosen images mirrored left to right."""
    return torch.where(chosen[:, None, None, None], x.flip(3), x)


def rotate(x: Float[Tensor, "n c s s"], turns: Int64[Tensor, " n"]) -> Float[Tensor, "n c s s"]:
    """Square images turned against the clock by so many quarters."""
    turned = x
    for quarters in (1, 2, 3):
        mine = (turns == quarters)[:, None, None, None]
        turned = torch.where(mine, x.rot90(quarters, dims=(2, 3)), turned)
    return turned


def blur_radius(size: int, sigma: float, kernel: float | None) -> int:
    """Pixels each side: a share of the image's side, or three sigma, the reach of PIL's blur."""
    radius = math.ceil(3 * sigma) if kernel is None else int(size * kernel / 2)
    return min(radius, size - 1)  # a reflection cannot be longer than the image


def blur(
    x: Float[Tensor, "n c h w"], sigma: Float[Tensor, " n"], radius: int
) -> Float[Tensor, "n c h w"]:
    """Each image blurred by its own Gaussian, mirrored at the borders; sigma 0 leaves it be."""
    step = torch.arange(-radius, radius + 1, device=x.device, dtype=torch.float64)
    sigma = sigma.double()[:, None]
    taps = torch.softmax(-0.5 * (step / sigma.clamp(min=1e-3)) ** 2, dim=1)
    taps = torch.where(taps < 1e-12, 0.0, taps).to(x.dtype)  # subnormal numbers are slow
    rows, columns = (_banded(taps, radius, side) for side in x.shape[2:])
    return resample(x, rows, columns)


def _banded(taps: Float[Tensor, "n k"], radius: int, side: int) -> Float[Tensor, "n s s"]:
    """The matrices whose product with a column of pixels is its blur."""
    pixel = torch.arange(side, device=taps.device)
    tap = torch.arange(-radius, radius + 1, device=taps.device)
    source = (pixel + tap[:, None]).abs()  # mirrored at the start, [K, S]
    source = (side - 1) - ((side - 1) - source).abs()  # and at the end
    places = (source[:, :, None] == pixel).to(taps.dtype)  # [K, S, S]
    return (taps @ places.flatten(1)).view(-1, side, side)


def cutout(
    x: Float[Tensor, "n c h w"], hole: Int64[Tensor, "n 4"], fill: tuple[float, ...]
) -> Float[Tensor, "n c h w"]:
    """A box (top, left, height, width) of each image filled with one color."""
    top, left, height, width = hole[:, :, None].unbind(1)
    row = torch.arange(x.shape[2], device=x.device)
    column = torch.arange(x.shape[3], device=x.device)
    rows = (row >= top) & (row < top + height)
    columns = (column >= left) & (column < left + width)
    inside = rows[:, None, :, None] & columns[:, None, None, :]
    return torch.where(inside, constant(fill, x)[:, None, None], x)


def sobel(x: Float[Tensor, "n c h w"], chosen: Bool[Tensor, " n"]) -> Float[Tensor, "n c h w"]:
    """The chosen images as the strength of their edges: 1 for a straight black to white edge."""
    padded = F.pad(x, (1, 1, 1, 1), mode="reflect")
    down = padded[:, :, :-2] + 2 * padded[:, :, 1:-1] + padded[:, :, 2:]
    across = padded[..., :-2] + 2 * padded[..., 1:-1] + padded[..., 2:]
    horizontal = down[..., 2:] - down[..., :-2]
    vertical = across[:, :, 2:] - across[:, :, :-2]
    edges = (torch.hypot(horizontal, vertical) / 4).clamp_(max=1)
    return torch.where(chosen[:, None, None, None], edges, x)


def noise(x: Float[Tensor, "n c h w"], grain: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
    """Each pixel moved by its grain, within [0, 1]."""
    return (x + grain).clamp_(0, 1)
