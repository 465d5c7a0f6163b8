"""Weights of an antialiased resize, for Triton kernels: which pixels one sees, and how much.

They are those of PIL and of torchvision with antialias: a triangle, or the cubic with a = -1/2,
stretched when a picture shrinks and cut at its border. They do not sum to one: a kernel divides.
`no_type_check` keeps the type checks of tests from wrapping what Triton reads as source.
"""

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def reach(place, start, length, size, cubic: tl.constexpr):
    """First pixel seen, its signed distance, what makes distances weigh, how many pixels, end.

    Distances are in parts of 2 * size to a pixel: in these everything is whole, and so exact.
    """
    stretch = tl.maximum(length, size)
    support = 2 * stretch
    if cubic:
        support = 4 * stretch
    centre = (2 * place + 1) * length - size  # from the start
    lowest = centre - support
    first = tl.where(lowest < 0, 0, lowest // (2 * size) + 1)
    offset = (first * (2 * size) - centre).to(tl.float32)
    shrink = 0.5 / stretch.to(tl.float32)
    taps = (support + size - 1) // size
    return start + first, offset, shrink, taps, start + length


@triton.jit
@no_type_check
def weight(pixel, offset, shrink, end, cubic: tl.constexpr):
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
