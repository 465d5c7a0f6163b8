"""Decoded images made smaller where they lie."""

from collections.abc import Sequence
from itertools import accumulate

import torch
import torch.nn.functional as F
from jaxtyping import UInt8
from torch import Tensor

from selfsight.rng import has_triton

Pixels = UInt8[Tensor, "c _ _"]


def shrunk(images: Sequence[Pixels], sizes: Sequence[tuple[int, int]]) -> list[Pixels]:
    """Each image at its (height, width), antialiased, bicubic; all of one number of channels."""
    if images and images[0].is_cuda and has_triton():
        return together(images, sizes)
    return [_alone(x, size) for x, size in zip(images, sizes, strict=True)]


def together(images: Sequence[Pixels], sizes: Sequence[tuple[int, int]]) -> list[Pixels]:
    """One launch of one kernel, however many sizes there are."""
    from selfsight.data.resize_kernel import COLUMNS, shrink

    planes, device = len(images[0]), images[0].device
    flat = torch.cat([x.flatten() for x in images])
    counts = [planes * height * width for height, width in sizes]
    places = [0, *accumulate(counts)]
    rows = zip(
        accumulate((x.numel() for x in images), initial=0), images, places, sizes, strict=False
    )
    numbers = torch.tensor([[at, *x.shape[1:], to, *size] for at, x, to, size in rows])
    if device.type == "cuda":
        numbers = numbers.pin_memory().to(device, non_blocking=True)
    starts, before, to, after = (x.contiguous() for x in numbers.split((1, 2, 1, 2), dim=1))
    out = torch.empty(places[-1], dtype=torch.uint8, device=device)
    tallest, widest = (max(side) for side in zip(*sizes, strict=True))
    across = -(-widest // COLUMNS)
    grid = (across * tallest, len(images))
    shrink[grid](flat, starts, before, out, to, after, across, planes=planes, columns=COLUMNS)
    parts = zip(out.split(counts), sizes, strict=True)
    return [part.view(planes, *size) for part, size in parts]


def _alone(x: Pixels, size: tuple[int, int]) -> Pixels:
    made = F.interpolate(x[None].float(), size=size, mode="bicubic", antialias=True)
    return made[0].round_().clamp_(0, 255).byte()
