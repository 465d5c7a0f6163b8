"""Let one launch work on lists of tensors: a table of their addresses, and chunks of equal size.

A program works on one chunk, so that it never holds elements of two tensors. `no_type_check` keeps
the type checker of the tests from wrapping functions whose source Triton reads.
"""

from collections.abc import Sequence
from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Int64
from torch import Tensor

CHUNK = 8192  # elements per program
BLOCK = 1024  # elements that a program holds at a time


def have_equal_layouts(tensors: Sequence[Tensor], *others: Sequence[Tensor]) -> bool:
    """Return whether element i of a tensor's memory is element i of its partners' in other lists.

    All must be dense, float32 and on one device.
    """
    device = tensors[0].device
    return all(
        t.dtype == torch.float32 and t.device == device and is_dense(t) for t in tensors
    ) and all(has_layout_of(x, t) for xs in others for x, t in zip(xs, tensors, strict=True))


def is_dense(x: Tensor) -> bool:
    """Return whether the tensor's memory has no gaps, for the two usual layouts."""
    return x.is_contiguous() or x.is_contiguous(memory_format=torch.channels_last)


def has_layout_of(x: Tensor, other: Tensor) -> bool:
    """Return whether two tensors agree in type, device, shape and strides."""
    if x.dtype != other.dtype or x.device != other.device or x.shape != other.shape:
        return False
    if x.stride() == other.stride():
        return True
    # The stride of an axis of length 1 is arbitrary.
    strides = zip(x.shape, x.stride(), other.stride(), strict=True)
    return all(length == 1 or a == b for length, a, b in strides)


def num_chunks(tensors: Sequence[Tensor]) -> int:
    """Return the number of chunks of these tensors."""
    return sum(-(-x.numel() // CHUNK) for x in tensors)


def padded_length(tensors: Sequence[Tensor]) -> int:
    """Return a power of two for the number of tensors, so that few kernels are compiled."""
    return max(128, triton.next_power_of_2(len(tensors)))


def address_table(*lists: Sequence[Tensor]) -> Int64[Tensor, "rows n"]:
    """Write the addresses of lists of n tensors, one row per list, and a row with their lengths.

    The table is written anew for each launch, because gradients have new addresses in every step.
    `_foreach_add_` passes numbers to the device as arguments of its kernels, some 90 per launch.
    A CUDA graph therefore records the table itself. A copy from the host would not be recorded,
    or would read host memory at each replay, which then had to stay as it was.
    """
    numbers = [x.data_ptr() for tensors in lists for x in tensors]
    numbers += [x.numel() for x in lists[0]]
    table = torch.zeros(len(numbers), dtype=torch.int64, device=lists[0][0].device)
    torch._foreach_add_(list(table.unbind()), numbers)
    return table.view(len(lists) + 1, -1)


@triton.jit
@no_type_check
def chunk_counts(lengths, count, chunk: tl.constexpr, padded: tl.constexpr):
    """Return the numbers of the tensors and how many chunks each has, zero beyond `count`."""
    i = tl.arange(0, padded)
    length = tl.load(lengths + i, mask=i < count, other=0)
    return i, ((length + chunk - 1) // chunk).to(tl.int32)


@triton.jit
@no_type_check
def locate(lengths, count, program, chunk: tl.constexpr, padded: tl.constexpr):
    """Return the tensor of a program's chunk, the chunk's start in it, and its elements."""
    i, counts = chunk_counts(lengths, count, chunk, padded)
    tensor = tl.sum((tl.cumsum(counts) <= program).to(tl.int32))
    before = tl.sum(tl.where(i < tensor, counts, 0))
    start = (program - before).to(tl.int64) * chunk
    return tensor, start, tl.minimum(tl.load(lengths + tensor) - start, chunk).to(tl.int32)


@triton.jit
@no_type_check
def float_pointer(address, aligned: tl.constexpr):
    """Convert an address to a pointer to float32; `aligned` promises a multiple of 16 bytes.

    Only then does the compiler load four elements at a time.
    """
    pointer = address.to(tl.pointer_type(tl.float32))
    if aligned:
        pointer = tl.multiple_of(pointer, 16)
    return pointer
