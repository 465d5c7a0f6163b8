"""An antialiased resize, for Triton kernels: which pixels a new one sees, and how much of each.

The weights are those of PIL and of torchvision with antialias: a triangle, or the cubic with
a = -1/2, stretched when an image shrinks and cut at its border. They do not sum to one: a kernel
divides.
`no_type_check` keeps the type checks of tests from wrapping what Triton reads as source.
"""

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def resampled(
    source,
    pitch,
    plane,
    down,
    along,
    top,
    left,
    height,
    width,
    size_y,
    size_x,
    block: tl.constexpr,
    planes: tl.constexpr,
    cubic: tl.constexpr,
):
    """Sum of the weights, and the weighted sum of each plane; of one plane the others are zero.

    For pixels (down, along) of an image of size_y x size_x, made from the box at (top, left).
    """
    y, off_y, shrink_y, taps_y, end_y = _reach(down, top, height, size_y, cubic)
    x, off_x, shrink_x, taps_x, end_x = _reach(along, left, width, size_x, cubic)
    total = tl.zeros([block], tl.float32)
    first = tl.zeros([block], tl.float32)
    second = tl.zeros([block], tl.float32)
    third = tl.zeros([block], tl.float32)
    for ty in range(taps_y):
        heavy_y = _weight(y + ty, off_y + ty * (2 * size_y), shrink_y, end_y, cubic)
        line = tl.minimum(y + ty, end_y - 1) * pitch
        for tx in range(taps_x):
            heavy_x = _weight(x + tx, off_x + tx * (2 * size_x), shrink_x, end_x, cubic)
            heavy = heavy_y * heavy_x
            total += heavy
            seen = line + tl.minimum(x + tx, end_x - 1)
            first += heavy * tl.load(source + seen).to(tl.float32)
            if planes == 3:
                second += heavy * tl.load(source + plane + seen).to(tl.float32)
                third += heavy * tl.load(source + 2 * plane + seen).to(tl.float32)
    return total, first, second, third


@triton.jit
@no_type_check
def _reach(place, start, length, size, cubic: tl.constexpr):
    """First pixel seen, its signed distance, what makes distances weigh, how many pixels, end.

    Distances are in parts of 2 * size to a pixel: in these everything is whole, and so exact.
    """
    stretch = tl.maximum(length, size)
    support = 2 * stretch
    if cubic:
        support = 4 * stretch
    center = (2 * place + 1) * length - size  # from the start
    lowest = center - support
    first = tl.where(lowest < 0, 0, lowest // (2 * size) + 1)
    offset = (first * (2 * size) - center).to(tl.float32)
    shrink = 0.5 / stretch.to(tl.float32)
    taps = (support + size - 1) // size
    return start + first, offset, shrink, taps, start + length


@triton.jit
@no_type_check
def _weight(pixel, offset, shrink, end, cubic: tl.constexpr):
    """How much a pixel at this distance adds; nothing from the end on."""
    d = tl.abs(offset) * shrink
    if cubic:
        d = tl.minimum(d, 2.0)
        near = (1.5 * d - 2.5) * d * d + 1
        far = ((-0.5 * d + 2.5) * d - 4) * d + 2
        heavy = tl.where(d < 1, near, far)
    else:
        heavy = tl.maximum(1 - d, 0.0)
    return tl.where(pixel < end, heavy, 0.0)
