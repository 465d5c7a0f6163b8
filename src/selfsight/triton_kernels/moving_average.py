"""The update of a moving average of many tensors as one kernel, which reads its weight itself."""

from collections.abc import Sequence
from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.graph import increment_version

from selfsight.triton_kernels.tensor_lists import (
    BLOCK,
    CHUNK,
    address_table,
    float_pointer,
    locate,
    num_chunks,
    padded_length,
)


def launch_moving_average(
    averages: Sequence[Tensor],
    values: Sequence[Tensor],
    momentum: float | Tensor,
    skipped: Tensor | None,
) -> None:
    """Update average = momentum * average + (1 - momentum) * value, unless `skipped` is 1.

    Both lists must have equal layouts. The host does not wait for the device.
    """
    programs = num_chunks(averages)
    if programs == 0:
        return
    table = address_table(averages, values)
    on_device = isinstance(momentum, Tensor)
    with torch.cuda.device_of(table):
        lerp_kernel[(programs,)](
            table,
            0.0 if on_device else 1.0 - float(momentum),
            momentum.to(table.device) if isinstance(momentum, Tensor) else None,
            None if skipped is None else skipped.to(table.device),
            len(averages),
            block=BLOCK,
            chunk=CHUNK,
            padded=padded_length(averages),
            num_warps=4,
        )
    increment_version(averages)


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["momentum", "skipped"])
@no_type_check
def lerp_kernel(
    table,
    weight,
    momentum,
    skipped,
    count,
    block: tl.constexpr,
    chunk: tl.constexpr,
    padded: tl.constexpr,
):
    """Move a chunk by `weight`, or by 1 - momentum if that is on the device."""
    moves = True
    if skipped is not None:
        moves = tl.load(skipped) == 0
    if moves:
        if momentum is not None:
            weight = (1.0 - tl.load(momentum).to(tl.float64)).to(tl.float32)
        tensor, first, length = locate(table + 2 * count, count, tl.program_id(0), chunk, padded)
        average = tl.load(table + tensor) + 4 * first
        value = tl.load(table + count + tensor) + 4 * first
        if (length == chunk) & (((average | value) & 15) == 0):
            _lerp(average, value, weight, chunk, block, True)
        else:
            _lerp(average, value, weight, length, block, False)


@triton.jit
@no_type_check
def _lerp(average, value, weight, length, block: tl.constexpr, full: tl.constexpr):
    """Move `length` elements; `full`: whole blocks at aligned addresses.

    Like torch's lerp it begins at the nearer end, so that a weight of 1 copies every bit.
    """
    average, value = float_pointer(average, full), float_pointer(value, full)
    for first in range(0, length, block):
        i = first + tl.arange(0, block)
        if full:
            start, end = tl.load(average + i), tl.load(value + i)
        else:
            start = tl.load(average + i, mask=i < length)
            end = tl.load(value + i, mask=i < length)
        way = end - start
        moved = tl.where(weight < 0.5, start + weight * way, end - way * (1 - weight))
        if full:
            tl.store(average + i, moved)
        else:
            tl.store(average + i, moved, mask=i < length)
