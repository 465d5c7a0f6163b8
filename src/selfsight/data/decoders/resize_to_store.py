"""Resize decoded images to the size at which they are stored."""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Shaped, UInt8
from torch import Tensor

from selfsight.rng import has_triton

Pixels = UInt8[Tensor, "c _ _"]
MAX_ASPECT = 4  # long side in store sizes: one panorama would otherwise pad its whole batch


def stored_size(size: tuple[int, int], store_size: int | None) -> tuple[int, int]:
    """Width and height at which an image of this width and height is stored; None: at its own."""
    if store_size is None:
        return size
    scale = min(1.0, store_size / min(size), MAX_ASPECT * store_size / max(size))
    width, height = (max(1, round(side * scale)) for side in size)
    return width, height


def resize_to_store(
    pixels: Shaped[np.ndarray, "h w c"], store_size: int | None
) -> Shaped[np.ndarray, "h2 w2 c"]:
    """Reduce an image to its stored size, antialiased and bicubic.

    torch gives Pillow's pixels (a few differ by one level) several times as fast.
    """
    height, width = pixels.shape[:2]
    size = stored_size((width, height), store_size)
    if size == (width, height):
        return pixels
    return resize_samples(pixels, size[::-1], "bicubic")


def resize_samples(
    pixels: Shaped[np.ndarray, "h w c"], size: tuple[int, int], interpolation: str
) -> Shaped[np.ndarray, "h2 w2 c"]:
    """Resize to (height, width), antialiased: bytes as bytes, other types in float32."""
    x = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    values = x if pixels.dtype == np.uint8 else x.float()
    values = F.interpolate(values, size=size, mode=interpolation, antialias=True)
    if pixels.dtype == np.uint16:
        values = values.round_().clamp_(0, 65535).to(x.dtype)
    return values[0].permute(1, 2, 0).numpy()


def resize_each(images: Sequence[Pixels], sizes: Sequence[tuple[int, int]]) -> list[Pixels]:
    """Reduce each image to its (height, width), antialiased and bicubic, on its device.

    All images have the same number of channels.
    """
    if images and images[0].is_cuda and has_triton():
        return resize_each_in_one_launch(images, sizes)
    return [_resize_one(x, size) for x, size in zip(images, sizes, strict=True)]


def resize_each_in_one_launch(
    images: Sequence[Pixels], sizes: Sequence[tuple[int, int]]
) -> list[Pixels]:
    """As `resize_each`, by one launch of one Triton kernel for all images."""
    from selfsight.triton_kernels.resample import COLUMNS, resize_kernel  # CPUs lack Triton

    channels, device = len(images[0]), images[0].device
    flat = torch.cat([x.flatten() for x in images])
    counts = [channels * height * width for height, width in sizes]
    out_starts = [0, *accumulate(counts)]
    starts = accumulate((x.numel() for x in images), initial=0)
    table = torch.tensor(
        [
            [start, *x.shape[1:], out_start, *size]
            for start, x, out_start, size in zip(starts, images, out_starts, sizes, strict=False)
        ]
    )
    if device.type == "cuda":
        table = table.pin_memory().to(device, non_blocking=True)
    columns = [x.contiguous() for x in table.split((1, 2, 1, 2), dim=1)]
    out = torch.empty(out_starts[-1], dtype=torch.uint8, device=device)
    tallest, widest = (max(side) for side in zip(*sizes, strict=True))
    across = -(-widest // COLUMNS)
    grid = (across * tallest, len(images))
    resize_kernel[grid](
        flat,
        columns[0],
        columns[1],
        out,
        columns[2],
        columns[3],
        across,
        channels=channels,
        columns=COLUMNS,
    )
    resized = zip(out.split(counts), sizes, strict=True)
    return [pixels.view(channels, *size) for pixels, size in resized]


def _resize_one(x: Pixels, size: tuple[int, int]) -> Pixels:
    y = F.interpolate(x[None].float(), size=size, mode="bicubic", antialias=True)
    return y[0].round_().clamp_(0, 255).byte()
