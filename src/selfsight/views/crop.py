"""Crops and resizes, exact and antialiased: per-image weights and two batched products.

The weights are those of PIL and of torchvision with antialias: a triangle, or the cubic with
a = -1/2, stretched when the image shrinks, cut at the border of the crop and summing to one.
"""

import torch
from jaxtyping import Bool, Float, Float32, Float64, Int64
from torch import Tensor

from selfsight.views.spec import Center, Interpolation


def crop(
    x: Float[Tensor, "n c h w"],
    box: Int64[Tensor, "n 4"],
    size: int,
    *,
    interpolation: Interpolation = "bilinear",
    flip: Bool[Tensor, " n"] | None = None,
) -> Float[Tensor, "n c {size} {size}"]:
    """Each image's box (top, left, height, width) as a square of this size, maybe mirrored."""
    top, left, height, width = box.double().unbind(1)
    none = torch.zeros_like(top)
    rows = weights(top, height, height / size, none, size, x.shape[2], interpolation)
    columns = weights(left, width, width / size, none, size, x.shape[3], interpolation, flip)
    return _in_range(resample(x, rows, columns), interpolation)


def center_crop(
    x: Float[Tensor, "n c h w"], sizes: Int64[Tensor, "n 2"], spec: Center
) -> Float[Tensor, "n c s s"]:
    """Short side resized to `spec.resize`, then the middle, in one step."""
    short = sizes.min(dim=1, keepdim=True).values
    resized = (spec.resize * sizes / short).long()  # truncated, as torchvision does
    offset = ((resized - spec.size) / 2).round()  # to even, as torchvision does
    scale = sizes.double() / resized
    none = torch.zeros_like(scale[:, 0])
    rows, columns = (
        weights(
            none,
            sizes[:, axis].double(),
            scale[:, axis],
            offset[:, axis].double(),
            spec.size,
            x.shape[2 + axis],
            spec.interpolation,
        )
        for axis in (0, 1)
    )
    return _in_range(resample(x, rows, columns), spec.interpolation)


def weights(
    start: Float64[Tensor, " n"],
    length: Float64[Tensor, " n"],
    scale: Float64[Tensor, " n"],
    offset: Float64[Tensor, " n"],
    size: int,
    extent: int,
    interpolation: Interpolation,
    flip: Bool[Tensor, " n"] | None = None,
) -> Float32[Tensor, "n {size} {extent}"]:
    """How much each of `extent` input pixels adds to each of `size` output pixels.

    Output pixel i lies at start + (i + offset + 1/2) * scale, and sees input only within
    [start, start + length).
    """
    i = torch.arange(size, device=start.device, dtype=torch.float64).expand(len(start), size)
    if flip is not None:
        i = torch.where(flip[:, None], size - 1 - i, i)
    at = start[:, None] + (i + offset[:, None] + 0.5) * scale[:, None] - 0.5
    j = torch.arange(extent, device=start.device, dtype=torch.float32)
    # Whole and part apart: their float32 difference to j keeps what float64 found.
    whole = at.floor()
    part = (at - whole).float()
    distance = (j - whole.float()[:, :, None]).sub_(part[:, :, None]).abs_()
    distance.mul_((1 / scale.clamp(min=1)).float()[:, None, None])
    w = _triangle(distance) if interpolation == "bilinear" else _cubic(distance)
    inside = (j >= start[:, None]) & (j < (start + length)[:, None])
    w = w.mul_(inside.float()[:, None, :])
    return w.div_(w.sum(dim=2, keepdim=True))


def resample(
    x: Float[Tensor, "n c h w"], rows: Float[Tensor, "n s h"], columns: Float[Tensor, "n t w"]
) -> Float[Tensor, "n c s t"]:
    """rows @ x @ columns^T for every image and channel."""
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


def _in_range(x: Tensor, interpolation: Interpolation) -> Tensor:
    # Only the cubic overshoots; images of bytes are cut there too.
    return x.clamp_(0, 1) if interpolation == "bicubic" else x
