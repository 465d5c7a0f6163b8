"""`rng.bits` and `rng.uniform` as one Triton kernel, and Philox for other kernels.

Written in torch operations, one call needs some 120 launches, a considerable part of a training
step of a few milliseconds. `no_type_check` keeps the type checker of the tests from wrapping
functions whose source Triton reads.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float64, Int64
from torch import Tensor

COUNTERS = 128  # per program; each gives four words


def launch_philox(
    key: tuple[int, int],
    index: Int64[Tensor, " n"],
    count: int,
    at: int | Tensor,
    dtype: torch.dtype,
) -> Int64[Tensor, "n count"] | Float64[Tensor, "n count"]:
    """Return `rng.bits` for int64 and `rng.uniform` for float64, without waiting for the device."""
    n, blocks = len(index), -(-count // 4)
    out = torch.empty(n, count, dtype=dtype, device=index.device)
    if isinstance(at, Tensor) and at.ndim == 0 and at.device.type != index.device.type:
        at = int(at)  # a scalar on the host; torch reads it at launch_philox too
    if isinstance(at, Tensor):
        at = at.to(torch.int64).expand(n, blocks)
        strides = at.stride()
    else:
        # Triton recompiles for 32-bit integers: set a 64-bit flag, which the kernel masks out
        at, strides = 1 << 40 | at & 0xFFFFFFFF, (0, 0)
    if out.numel():
        with torch.cuda.device_of(index):
            philox_kernel[(triton.cdiv(n * blocks, COUNTERS),)](
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


@triton.jit(do_not_specialize=["index", "at", "seed", "n", "count", "row_stride", "block_stride"])
@no_type_check
def philox_kernel(
    out,
    index,
    at,
    seed: tl.uint64,
    n: tl.int64,
    count: tl.int64,
    row_stride: tl.int64,
    block_stride: tl.int64,
    counters: tl.constexpr,
):
    """Write the words of `counters` counters; `at` is a number, or a pointer with strides."""
    blocks = (count + 3) // 4
    number = tl.program_id(0).to(tl.int64) * counters + tl.arange(0, counters)
    row, block = number // blocks, number % blocks
    valid = row < n
    step = tl.zeros_like(row)
    if at.dtype.is_ptr():
        step += tl.load(at + row * row_stride + block * block_stride, mask=valid, other=0)
    else:
        step += at
    a, b, c, d = philox(seed, tl.load(index + row, mask=valid, other=0), block, step)
    words = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [counters, 4])
    column = 4 * block[:, None] + tl.arange(0, 4)[None, :]
    values = unit(words) if out.dtype.element_ty == tl.float64 else words.to(tl.int64)
    tl.store(out + row[:, None] * count + column, values, mask=valid[:, None] & (column < count))


@triton.jit
@no_type_check
def philox(seed, row, block, step):
    """Return four uint32 words; the seed holds the key's first word in its low half."""
    low, high = (row & 0xFFFFFFFF).to(tl.uint32), ((row >> 32) & 0xFFFFFFFF).to(tl.uint32)
    return tl.philox(seed, low, high, block.to(tl.uint32), (step & 0xFFFFFFFF).to(tl.uint32))


@triton.jit
@no_type_check
def unit(word):
    """Convert a word to a number in [0, 1)."""
    return word.to(tl.float64) * 2.3283064365386963e-10  # 2 ** -32
