"""The evaluation transform as part of a graph: images of any size in, features out.

A resize is a product with a matrix of weights for each side. torch resizes bytes with weights that
are rounded to 16 bits; these are the same weights, computed by operations that a graph can have, so
that the pixels are equal to the last bit (tests compare them with the transform itself).
"""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from selfsight.data.eval_transform import MAX_ASPECT, EvalTransform

POWERS = 23  # torch tries so many binary digits for the weights, as many as 16 bits can hold
BORDER = 4  # rows from the border of the resized image: their weights may be the largest


class GraphTransform(nn.Module):
    """A backbone after its transform: uint8 [N, H, W, C], all of one size, to features."""

    def __init__(self, backbone: nn.Module, transform: EvalTransform) -> None:
        super().__init__()
        self.backbone, self.transform = backbone, transform

    def forward(self, images: UInt8[Tensor, "n h w c"]) -> Float[Tensor, "n d"]:
        """Resize, crop, normalize and encode."""
        return self.backbone(self.transform.normalize(self.crop(images)))

    def crop(self, images: UInt8[Tensor, "n h w c"]) -> Tensor:
        """Resize and crop as `EvalTransform.crop` does: first along the rows, then the columns."""
        x = images.permute(0, 3, 1, 2).double()
        height, width = (torch.full((), side, dtype=torch.int64) for side in images.shape[1:3])
        short = torch.minimum(height, width)
        x = _resize(x, *self._weights(images.shape[2], width, short))
        x = _resize(x.mT, *self._weights(images.shape[1], height, short)).mT
        return x.to(torch.uint8)

    def _weights(self, count: int, side: Tensor, short: Tensor) -> tuple[Tensor, Tensor]:
        """Integer weights [size, count] of the pixels of a side, and what they sum up to."""
        transform = self.transform
        start, resized = torch.zeros_like(side), torch.full_like(side, transform.resize)
        if transform.keep_aspect:
            full, side = side, torch.minimum(side, MAX_ASPECT * short)
            start, resized = (full - side) // 2, transform.resize * side // short
        top = ((resized - transform.size).double() / 2).round()
        rows = torch.arange(transform.size, dtype=torch.float64) + top
        rows = torch.cat([rows, torch.arange(BORDER, dtype=torch.float64)])
        scale = side.double() / resized.double()
        pixel = torch.arange(count, dtype=torch.float64) - start.double()
        distance = (pixel + 0.5 - scale * (rows[:, None] + 0.5)) / scale.clamp(min=1.0)
        filter_weights = _triangle if transform.interpolation == "bilinear" else _cubic
        inside = (pixel >= 0) & (pixel < side.double())
        weights = filter_weights(distance) * inside.double()
        weights = weights / weights.sum(dim=1, keepdim=True)
        powers = 2.0 ** torch.arange(POWERS, dtype=torch.float64)
        fits = (weights.max() * powers[1:] + 0.5).floor() < 2**15
        one = (powers[1:] * fits.double()).max().clamp(min=1.0)
        weights = weights[: transform.size]
        return weights.sign() * (weights.abs() * one + 0.5).floor(), one


def _resize(x: Tensor, weights: Tensor, one: Tensor) -> Tensor:
    """Resize the last side and round to bytes; float64 holds these integers exactly."""
    return ((x @ weights.mT + one / 2) / one).floor().clamp(0, 255)


def _triangle(distance: Tensor) -> Tensor:
    return (1 - distance.abs()).clamp(min=0)


def _cubic(distance: Tensor) -> Tensor:
    d, a = distance.abs(), -0.5
    near, far = ((a + 2) * d - (a + 3)) * d * d + 1, a * (((d - 5) * d + 8) * d - 4)
    return torch.where(d < 1, near, torch.where(d < 2, far, torch.zeros_like(d)))
