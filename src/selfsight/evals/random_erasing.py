"""Random erasing (arXiv:1708.04896) with the defaults of timm's RandomErasing, mode "pixel".

timm loops over the images and samples from Python's global state. Here a batch is erased at once on
the device, and samples depend on (seed, epoch, image), equal on any number of processes.
"""

import math

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from selfsight import rng

AREA = (0.02, 1 / 3)  # of the erased box, as a share of the image
MIN_ASPECT = 0.3
TRIES = 10


def erase(
    x: Float[Tensor, "n c h w"],
    index: Int64[Tensor, " n"],
    probability: float,
    *,
    seed: int,
    epoch: Int64[Tensor, "n 1"],
) -> Float[Tensor, "n c h w"]:
    """Fill a random box with normal noise, in each image with this probability."""
    if not probability:
        return x
    u = rng.uniform(rng.key(seed, "erase"), index, 1 + 4 * TRIES, epoch)
    rows = (u[:, 0] < probability).nonzero()[:, 0]
    if not len(rows):
        return x
    n, (c, h, w) = len(rows), x.shape[1:]
    area, aspect, top, left = u[rows, 1:].view(n, 4, TRIES).unbind(1)
    area = (AREA[0] + (AREA[1] - AREA[0]) * area) * h * w
    aspect = (math.log(MIN_ASPECT) * (1 - 2 * aspect)).exp()
    height, width = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
    fits = (height < h) & (width < w)
    first = fits.int().argmax(dim=1, keepdim=True)  # the first try that fits
    height, width = (s.gather(1, first) * fits.any(dim=1, keepdim=True) for s in (height, width))
    top = (top.gather(1, first) * (h - height + 1)).floor()
    left = (left.gather(1, first) * (w - width + 1)).floor()
    row = torch.arange(h, device=x.device)
    column = torch.arange(w, device=x.device)
    in_rows = (row >= top) & (row < top + height)  # [n, H]
    in_columns = (column >= left) & (column < left + width)
    box = (in_rows[:, :, None] & in_columns[:, None, :])[:, None]
    noise = rng.normal(rng.key(seed, "erase", "noise"), index[rows], c * h * w, epoch[rows])
    x = x.clone()
    x[rows] = torch.where(box, noise.view(n, c, h, w).to(x.dtype), x[rows])
    return x
