"""Images of any sizes, each shrunk to a size of its own: one launch for a whole batch."""

from typing import no_type_check

import triton
import triton.language as tl

from selfsight.triton_helpers.resample import resample

COLUMNS = 128  # pixels of a row that a program makes


@triton.jit(do_not_specialize_on_alignment=["flat", "starts", "sizes", "out", "places", "made"])
@no_type_check
def shrink(
    flat,
    starts,
    sizes,
    out,
    places,
    made,
    across,
    planes: tl.constexpr,
    columns: tl.constexpr,
):
    """Images [planes, H, W] from `starts` on, of `sizes`, to `places` on, of the sizes `made`."""
    i = tl.program_id(1)
    down = tl.program_id(0) // across
    along = (tl.program_id(0) % across) * columns + tl.arange(0, columns)
    height, width = tl.load(sizes + 2 * i).to(tl.int32), tl.load(sizes + 2 * i + 1).to(tl.int32)
    to_height = tl.load(made + 2 * i).to(tl.int32)
    to_width = tl.load(made + 2 * i + 1).to(tl.int32)
    inside = along < to_width
    if down < to_height:
        # Beyond its row a program makes the last pixel again, and does not store it.
        at = tl.minimum(along, to_width - 1)
        plane = height.to(tl.int64) * width
        source = flat + tl.load(starts + i)
        total, first, second, third = resample(
            source,
            width,
            plane,
            down,
            at,
            0,
            0,
            height,
            width,
            to_height,
            to_width,
            columns,
            planes,
            True,
        )
        area = to_height.to(tl.int64) * to_width
        target = out + tl.load(places + i) + down.to(tl.int64) * to_width + along
        tl.store(target, _level(first / total), mask=inside)
        if planes == 3:
            tl.store(target + area, _level(second / total), mask=inside)
            tl.store(target + 2 * area, _level(third / total), mask=inside)


@triton.jit
@no_type_check
def _level(x):
    return tl.minimum(tl.maximum(x + 0.5, 0.0), 255.0).to(tl.uint8)
