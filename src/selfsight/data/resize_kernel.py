"""Triton kernel that resizes images of different sizes, each to its own size, in one launch."""

from typing import no_type_check

import triton
import triton.language as tl

from selfsight.triton_helpers.resample import resample

COLUMNS = 128  # pixels of a row that one program writes


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
