"""The words of `random.bits` as one Triton kernel, and its Philox for other kernels.

In torch's operations a draw is some 120 launches, which weigh on a step that is itself a few
milliseconds. `no_type_check` keeps the type checks of tests from wrapping what Triton reads as
source.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float64, Int64
from torch import Tensor

COUNTERS = 128  # of a program, each of four words


def launch(
    key: tuple[int, int],
    index: Int64[Tensor, " n"],
    count: int,
    at: int | Tensor,
    dtype: torch.dtype,
) -> Int64[Tensor, "n count"] | Float64[Tensor, "n count"]:
    """`random.bits` for int64, `random.uniform` for float64; the host waits for nothing."""
    n, blocks = len(index), -(-count // 4)
    out = torch.empty(n, count, dtype=dtype, device=index.device)
    if isinstance(at, Tensor) and at.ndim == 0 and at.device.type != index.device.type:
        at = int(at)  # torch, too, reads a single number from the host when it launches
    if isinstance(at, Tensor):
        at = at.to(torch.int64).expand(n, blocks)
        strides = at.stride()
    else:
        # Triton compiles anew for an integer of 32 bits: the kernel drops what makes this one of 64
        at, strides = 1 << 40 | at & 0xFFFFFFFF, (0, 0)
    if out.numel():
        with torch.cuda.device_of(index):
            draw[(triton.cdiv(n * blocks, COUNTERS),)](
                out,
                index.contiguous(),
                at,
                key[0] | key[1] << 32,
                n,
                count,
                *strides,
                counters=COUNTERS,
                num_warps=4,
            )
    return out


@triton.jit(do_not_specialize=["index", "at", "seed", "n", "count", "down", "along"])
@no_type_check
def draw(
    out,
    index,
    at,
    seed: tl.uint64,
    n: tl.int64,
    count: tl.int64,
    down: tl.int64,
    along: tl.int64,
    counters: tl.constexpr,
):
    """Write the words of some counters; `at` is a number, or where such lie, with its strides."""
    blocks = (count + 3) // 4
    number = tl.program_id(0).to(tl.int64) * counters + tl.arange(0, counters)
    row, block = number // blocks, number % blocks
    valid = row < n
    moment = tl.zeros_like(row)
    if at.dtype.is_ptr():
        moment += tl.load(at + row * down + block * along, mask=valid, other=0)
    else:
        moment += at
    a, b, c, d = philox(seed, tl.load(index + row, mask=valid, other=0), block, moment)
    words = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [counters, 4])
    column = 4 * block[:, None] + tl.arange(0, 4)[None, :]
    held = unit(words) if out.dtype.element_ty == tl.float64 else words.to(tl.int64)
    tl.store(out + row[:, None] * count + column, held, mask=valid[:, None] & (column < count))


@triton.jit
@no_type_check
def philox(seed, row, block, moment):
    """Four words in uint32; the seed is a key's first word below its second."""
    low, high = (row & 0xFFFFFFFF).to(tl.uint32), ((row >> 32) & 0xFFFFFFFF).to(tl.uint32)
    return tl.philox(seed, low, high, block.to(tl.uint32), (moment & 0xFFFFFFFF).to(tl.uint32))


@triton.jit
@no_type_check
def unit(word):
    """A word as a number in [0, 1)."""
    return word.to(tl.float64) * 2.3283064365386963e-10  # 2 ** -32
