"""Spatial operations: crop, resize, flip, rotate, blur, cutout, Sobel, noise.

Each image has its own parameters. Crops and resizes are exact and antialiased: per-image weights
and two batched matrix products. The weights are those of PIL and of torchvision with antialias: a
triangle, or the cubic with a = -1/2, stretched when the image shrinks, truncated at the border of
the crop and summing to one.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float32, Float64, Int64
from torch import Tensor

from selfsight.data.eval_transform import Interpolation
from selfsight.views.color import constant


def crop(
    x: Float[Tensor, "n c h w"],
    box: Int64[Tensor, "n 4"],
    size: int,
    *,
    interpolation: Interpolation = "bilinear",
    flip: Bool[Tensor, " n"] | None = None,
) -> Float[Tensor, "n c {size} {size}"]:
    """Resize each image's box (top, left, height, width) to a square; flip where `flip` is true."""
    top, left, height, width = box.double().unbind(1)
    rows = resize_weights(top, height, height / size, size, x.shape[2], interpolation)
    columns = resize_weights(left, width, width / size, size, x.shape[3], interpolation, flip)
    return _clamp_overshoot(resample(x, rows, columns), interpolation)


def resize_weights(
    start: Float64[Tensor, " n"],
    length: Float64[Tensor, " n"],
    scale: Float64[Tensor, " n"],
    size: int,
    extent: int,
    interpolation: Interpolation,
    flip: Bool[Tensor, " n"] | None = None,
) -> Float32[Tensor, "n {size} {extent}"]:
    """Return the weight of each of `extent` input pixels for each of `size` output pixels.

    Output pixel i is centered at start + (i + 1/2) * scale, and uses only input within
    [start, start + length).
    """
    i = torch.arange(size, device=start.device, dtype=torch.float64).expand(len(start), size)
    if flip is not None:
        i = torch.where(flip[:, None], size - 1 - i, i)
    center = start[:, None] + (i + 0.5) * scale[:, None] - 0.5
    j = torch.arange(extent, device=start.device, dtype=torch.float32)
    # Subtract integer and fraction separately: float32 then keeps the precision of float64.
    integer = center.floor()
    fraction = (center - integer).float()
    distance = (j - integer.float()[:, :, None]).sub_(fraction[:, :, None]).abs_()
    distance.mul_((1 / scale.clamp(min=1)).float()[:, None, None])
    w = _triangle(distance) if interpolation == "bilinear" else _cubic(distance)
    inside = (j >= start[:, None]) & (j < (start + length)[:, None])
    w = w.mul_(inside.float()[:, None, :])
    return w.div_(w.sum(dim=2, keepdim=True))


def resample(
    x: Float[Tensor, "n c h w"], rows: Float[Tensor, "n s h"], columns: Float[Tensor, "n t w"]
) -> Float[Tensor, "n c s t"]:
    """Return rows @ x @ columns^T for every image and channel."""
    n, c, h, w = x.shape
    x = torch.bmm(x.reshape(n, c * h, w), columns.transpose(1, 2)).view(n, c, h, -1)
    return torch.matmul(rows[:, None], x)


def _triangle(distance: Tensor) -> Tensor:
    return distance.neg_().add_(1).clamp_(min=0)


def _cubic(distance: Tensor) -> Tensor:
    d = distance.clamp_(max=2)
    near = (1.5 * d - 2.5) * d * d + 1
    far = ((-0.5 * d + 2.5) * d - 4) * d + 2
    return torch.where(d < 1, near, far)


def _clamp_overshoot(x: Tensor, interpolation: Interpolation) -> Tensor:
    # Only the cubic overshoots; for images of bytes, PIL and torchvision clamp too.
    return x.clamp_(0, 1) if interpolation == "bicubic" else x


def flip(x: Float[Tensor, "n c h w"], selected: Bool[Tensor, " n"]) -> Float[Tensor, "n c h w"]:
    """Flip the selected images left to right."""
    return torch.where(selected[:, None, None, None], x.flip(3), x)


def rotate(
    x: Float[Tensor, "n c s s"], quarter_turns: Int64[Tensor, " n"]
) -> Float[Tensor, "n c s s"]:
    """Rotate square images counterclockwise by multiples of 90 degrees."""
    rotated = x
    for quarters in (1, 2, 3):
        selected = (quarter_turns == quarters)[:, None, None, None]
        rotated = torch.where(selected, x.rot90(quarters, dims=(2, 3)), rotated)
    return rotated


def blur_radius(size: int, sigma: float, kernel: float | None) -> int:
    """Return the blur's radius: from the kernel width, or three sigma as in PIL for None."""
    radius = math.ceil(3 * sigma) if kernel is None else int(size * kernel / 2)
    return min(radius, size - 1)  # a reflection cannot be longer than the image


def blur(
    x: Float[Tensor, "n c h w"], sigma: Float[Tensor, " n"], radius: int
) -> Float[Tensor, "n c h w"]:
    """Blur each image by its Gaussian, reflected at the borders; sigma 0 does nothing."""
    step = torch.arange(-radius, radius + 1, device=x.device, dtype=torch.float64)
    sigma = sigma.double()[:, None]
    taps = torch.softmax(-0.5 * (step / sigma.clamp(min=1e-3)) ** 2, dim=1)
    taps = torch.where(taps < 1e-12, 0.0, taps).to(x.dtype)  # subnormal numbers are slow
    rows, columns = (_blur_matrix(taps, radius, side) for side in x.shape[2:])
    return resample(x, rows, columns)


def _blur_matrix(taps: Float[Tensor, "n k"], radius: int, side: int) -> Float[Tensor, "n s s"]:
    """Return the matrices whose product with a column of pixels is its blur."""
    pixel = torch.arange(side, device=taps.device)
    tap = torch.arange(-radius, radius + 1, device=taps.device)
    source = (pixel + tap[:, None]).abs()  # reflected at the start, [K, S]
    source = (side - 1) - ((side - 1) - source).abs()  # and at the end
    places = (source[:, :, None] == pixel).to(taps.dtype)  # [K, S, S]
    return (taps @ places.flatten(1)).view(-1, side, side)


def cutout(
    x: Float[Tensor, "n c h w"], box: Int64[Tensor, "n 4"], fill: tuple[float, ...]
) -> Float[Tensor, "n c h w"]:
    """Fill a box (top, left, height, width) of each image with one color."""
    top, left, height, width = box[:, :, None].unbind(1)
    row = torch.arange(x.shape[2], device=x.device)
    column = torch.arange(x.shape[3], device=x.device)
    rows = (row >= top) & (row < top + height)
    columns = (column >= left) & (column < left + width)
    inside = rows[:, None, :, None] & columns[:, None, None, :]
    return torch.where(inside, constant(fill, x)[:, None, None], x)


def sobel(x: Float[Tensor, "n c h w"], selected: Bool[Tensor, " n"]) -> Float[Tensor, "n c h w"]:
    """Replace the selected images by edge magnitudes: 1 at a straight black to white edge."""
    padded = F.pad(x, (1, 1, 1, 1), mode="reflect")
    down = padded[:, :, :-2] + 2 * padded[:, :, 1:-1] + padded[:, :, 2:]
    across = padded[..., :-2] + 2 * padded[..., 1:-1] + padded[..., 2:]
    horizontal = down[..., 2:] - down[..., :-2]
    vertical = across[:, :, 2:] - across[:, :, :-2]
    edges = (torch.hypot(horizontal, vertical) / 4).clamp_(max=1)
    return torch.where(selected[:, None, None, None], edges, x)


def noise(x: Float[Tensor, "n c h w"], added: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
    """Add noise to each pixel and clamp to [0, 1]."""
    return (x + added).clamp_(0, 1)
