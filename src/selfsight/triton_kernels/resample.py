"""Antialiased resampling for Triton kernels.

The weights are those of PIL and of torchvision with antialias: a triangle, or the cubic with
a = -1/2, stretched when an image shrinks and truncated at its border. They do not sum to one: the
calling kernel divides by their sum. `resize_kernel` does so for images of different sizes.
`no_type_check` keeps the type checker of the tests from wrapping functions whose source Triton
reads.
"""

from typing import no_type_check

import triton
import triton.language as tl

COLUMNS = 128  # pixels of a row that one program writes


@triton.jit
@no_type_check
def resample(
    source,
    pitch,
    plane,
    out_y,
    out_x,
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
    """Return the sum of the weights and the weighted sum of each plane (zero for absent planes).

    Output pixels (out_y, out_x) belong to an image of size_y x size_x, resized from the box
    (top, left, height, width).
    """
    y, off_y, shrink_y, taps_y, end_y = _taps(out_y, top, height, size_y, cubic)
    x, off_x, shrink_x, taps_x, end_x = _taps(out_x, left, width, size_x, cubic)
    total = tl.zeros([block], tl.float32)
    first = tl.zeros([block], tl.float32)
    second = tl.zeros([block], tl.float32)
    third = tl.zeros([block], tl.float32)
    for ty in range(taps_y):
        weight_y = _weight(y + ty, off_y + ty * (2 * size_y), shrink_y, end_y, cubic)
        row_offset = tl.minimum(y + ty, end_y - 1) * pitch
        for tx in range(taps_x):
            weight_x = _weight(x + tx, off_x + tx * (2 * size_x), shrink_x, end_x, cubic)
            weight = weight_y * weight_x
            total += weight
            pixel = row_offset + tl.minimum(x + tx, end_x - 1)
            first += weight * tl.load(source + pixel).to(tl.float32)
            if planes == 3:
                second += weight * tl.load(source + plane + pixel).to(tl.float32)
                third += weight * tl.load(source + 2 * plane + pixel).to(tl.float32)
    return total, first, second, third


@triton.jit
@no_type_check
def _taps(out_pixel, start, length, size, cubic: tl.constexpr):
    """Return first input pixel, its signed distance, distance scale, number of taps, and end.

    Distances are integers in units of 1 / (2 * size) pixel, and so exact.
    """
    stretch = tl.maximum(length, size)
    support = 2 * stretch
    if cubic:
        support = 4 * stretch
    center = (2 * out_pixel + 1) * length - size  # from the start
    lowest = center - support
    first = tl.where(lowest < 0, 0, lowest // (2 * size) + 1)
    offset = (first * (2 * size) - center).to(tl.float32)
    shrink = 0.5 / stretch.to(tl.float32)
    taps = (support + size - 1) // size
    return start + first, offset, shrink, taps, start + length


@triton.jit
@no_type_check
def _weight(pixel, offset, shrink, end, cubic: tl.constexpr):
    """Return the weight of an input pixel at this distance; zero from the end on."""
    d = tl.abs(offset) * shrink
    if cubic:
        d = tl.minimum(d, 2.0)
        near = (1.5 * d - 2.5) * d * d + 1
        far = ((-0.5 * d + 2.5) * d - 4) * d + 2
        weight = tl.where(d < 1, near, far)
    else:
        weight = tl.maximum(1 - d, 0.0)
    return tl.where(pixel < end, weight, 0.0)


@triton.jit(
    do_not_specialize_on_alignment=["flat", "starts", "sizes", "out", "out_starts", "out_sizes"]
)
@no_type_check
def resize_kernel(
    flat,
    starts,
    sizes,
    out,
    out_starts,
    out_sizes,
    across,
    channels: tl.constexpr,
    columns: tl.constexpr,
):
    """Read images [C, H, W] at `starts` with `sizes`; write them to `out_starts`, `out_sizes`."""
    i = tl.program_id(1)
    row = tl.program_id(0) // across
    column = (tl.program_id(0) % across) * columns + tl.arange(0, columns)
    height, width = tl.load(sizes + 2 * i).to(tl.int32), tl.load(sizes + 2 * i + 1).to(tl.int32)
    out_height = tl.load(out_sizes + 2 * i).to(tl.int32)
    out_width = tl.load(out_sizes + 2 * i + 1).to(tl.int32)
    inside = column < out_width
    if row < out_height:
        # Beyond the row a program computes the last pixel again, and does not store it.
        at = tl.minimum(column, out_width - 1)
        plane = height.to(tl.int64) * width
        source = flat + tl.load(starts + i)
        total, first, second, third = resample(
            source,
            width,
            plane,
            row,
            at,
            0,
            0,
            height,
            width,
            out_height,
            out_width,
            columns,
            channels,
            True,
        )
        area = out_height.to(tl.int64) * out_width
        target = out + tl.load(out_starts + i) + row.to(tl.int64) * out_width + column
        tl.store(target, _to_uint8(first / total), mask=inside)
        if channels == 3:
            tl.store(target + area, _to_uint8(second / total), mask=inside)
            tl.store(target + 2 * area, _to_uint8(third / total), mask=inside)


@triton.jit
@no_type_check
def _to_uint8(x):
    return tl.minimum(tl.maximum(x + 0.5, 0.0), 255.0).to(tl.uint8)
