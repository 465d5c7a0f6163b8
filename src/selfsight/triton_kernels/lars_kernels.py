"""A step of `optim.LARS` in seven passes over memory: two for the norms, five for the update.

One launch sums the squares of each chunk, one turns the sums of each tensor into two factors, and
one updates: m = momentum m + inner g', w -= outer m, where the variants differ only in the
factors. Sums have a fixed order, so that two runs agree to the last bit.
"""

from collections.abc import Sequence
from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.graph import increment_version

from selfsight.triton_kernels.tensor_lists import (
    BLOCK,
    CHUNK,
    address_table,
    chunk_counts,
    float_pointer,
    has_layout_of,
    locate,
    num_chunks,
    padded_length,
)


def launch_lars(
    group: dict[str, Any],
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    buffers: Sequence[Tensor],
    found_inf: Tensor | None,
) -> None:
    """Step the parameters of one group, without waiting for the device.

    Buffers must have the layouts of their parameters. A gradient of another one is copied.
    """
    grads = [
        g if has_layout_of(g, p) else torch.empty_like(p).copy_(g)
        for p, g in zip(params, grads, strict=True)
    ]
    programs, device = num_chunks(params), params[0].device
    if programs == 0:
        return
    lr = group["lr"]
    if not isinstance(lr, Tensor) or lr.device != device:
        lr = torch.full((), float(lr), device=device)
    weight_decay, variant = float(group["weight_decay"]), group["variant"]
    table = address_table(params, grads, buffers)
    sums = torch.empty(programs, 2, device=device)
    factors = torch.empty(len(params), 2, device=device)
    sizes = {"chunk": CHUNK, "padded": padded_length(params)}
    with torch.cuda.device_of(table):
        if group["adapt"]:
            sums_kernel[(programs,)](
                table,
                sums,
                len(params),
                weight_decay if variant in ("mocov3", "simclr") else 0.0,
                block=BLOCK,
                num_warps=4,
                **sizes,
            )
        factors_kernel[(len(params),)](
            table,
            sums,
            factors,
            lr,
            len(params),
            weight_decay,
            float(group["trust_coefficient"]),
            adapt=bool(group["adapt"]),
            variant=variant,
            block=BLOCK,
            num_warps=4,
            **sizes,
        )
        update_kernel[(programs,)](
            table,
            factors,
            found_inf,
            len(params),
            weight_decay,
            float(group["momentum"]),
            block=BLOCK,
            num_warps=4,
            **sizes,
        )
    increment_version([*params, *buffers])


@triton.jit(do_not_specialize=["count"])
@no_type_check
def sums_kernel(
    table,
    sums,
    count,
    weight_decay,
    block: tl.constexpr,
    chunk: tl.constexpr,
    padded: tl.constexpr,
):
    """Write a chunk's sums of squares of w and of g + weight_decay w."""
    program = tl.program_id(0)
    tensor, start, length = locate(table + 3 * count, count, program, chunk, padded)
    w = tl.load(table + tensor) + 4 * start
    g = tl.load(table + count + tensor) + 4 * start
    if (length == chunk) & (((w | g) & 15) == 0):
        sum_w, sum_g = _sums(w, g, chunk, weight_decay, block, True)
    else:
        sum_w, sum_g = _sums(w, g, length, weight_decay, block, False)
    tl.store(sums + 2 * program, sum_w)
    tl.store(sums + 2 * program + 1, sum_g)


@triton.jit
@no_type_check
def _sums(w, g, length, weight_decay, block: tl.constexpr, full: tl.constexpr):
    """Sum the squares of `length` elements; `full`: whole blocks at aligned addresses."""
    w, g = float_pointer(w, full), float_pointer(g, full)
    sum_w = tl.zeros([block], tl.float32)
    sum_g = tl.zeros([block], tl.float32)
    for first in range(0, length, block):
        i = first + tl.arange(0, block)
        if full:
            weight, grad = tl.load(w + i), tl.load(g + i)
        else:
            weight = tl.load(w + i, mask=i < length, other=0.0)
            grad = tl.load(g + i, mask=i < length, other=0.0)
        grad += weight_decay * weight
        sum_w += weight * weight
        sum_g += grad * grad
    return tl.sum(sum_w), tl.sum(sum_g)


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["lr"])
@no_type_check
def factors_kernel(
    table,
    sums,
    factors,
    lr,
    count,
    weight_decay,
    trust_coefficient,
    adapt: tl.constexpr,
    variant: tl.constexpr,
    block: tl.constexpr,
    chunk: tl.constexpr,
    padded: tl.constexpr,
):
    """Write two factors of a tensor: that of its gradient, and that of its momentum buffer."""
    tensor = tl.program_id(0)
    learning_rate = tl.load(lr).to(tl.float64)
    ratio = tl.full([], 1.0, tl.float64)
    if adapt:
        i, counts = chunk_counts(table + 3 * count, count, chunk, padded)
        before = tl.sum(tl.where(i < tensor, counts, 0))
        length = tl.sum(tl.where(i == tensor, counts, 0))
        sum_w = tl.zeros([block], tl.float64)
        sum_g = tl.zeros([block], tl.float64)
        for first in range(0, length, block):
            number = first + tl.arange(0, block)
            at = sums + 2 * (before + number)
            sum_w += tl.load(at, mask=number < length, other=0.0).to(tl.float64)
            sum_g += tl.load(at + 1, mask=number < length, other=0.0).to(tl.float64)
        weight_norm, norm = tl.sqrt(tl.sum(sum_w)), tl.sqrt(tl.sum(sum_g))
        if variant == "mocov3" or variant == "simclr":
            ratio = trust_coefficient * weight_norm / norm
        else:
            grad_norm = norm
            norm = grad_norm + weight_decay * weight_norm
            ratio = trust_coefficient * weight_norm / (norm + 1e-8)
            if variant == "clipped":  # a warm-up begins at lr = 0, where the ratio is clipped
                ratio = tl.minimum(ratio / learning_rate, 1.0)
            if variant == "larc" or variant == "clipped":
                ratio = tl.where(grad_norm > 0, ratio, 0.0)
        ratio = tl.where((weight_norm > 0) & (norm > 0), ratio, 1.0)
    inner, outer = ratio, learning_rate
    if variant == "simclr":
        inner, outer = ratio * learning_rate, tl.full([], 1.0, tl.float64)
    if variant == "fastmoco":
        inner, outer = tl.full([], 1.0, tl.float64), ratio * learning_rate
    tl.store(factors + 2 * tensor, inner.to(tl.float32))
    tl.store(factors + 2 * tensor + 1, outer.to(tl.float32))


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["found_inf"])
@no_type_check
def update_kernel(
    table,
    factors,
    found_inf,
    count,
    weight_decay,
    momentum,
    block: tl.constexpr,
    chunk: tl.constexpr,
    padded: tl.constexpr,
):
    """Update the weights and the momentum buffer of a chunk, unless `found_inf` is 1."""
    is_finite = True
    if found_inf is not None:
        is_finite = tl.load(found_inf) != 1
    if is_finite:
        tensor, start, length = locate(table + 3 * count, count, tl.program_id(0), chunk, padded)
        w = tl.load(table + tensor) + 4 * start
        g = tl.load(table + count + tensor) + 4 * start
        m = tl.load(table + 2 * count + tensor) + 4 * start
        inner = tl.load(factors + 2 * tensor)
        outer = tl.load(factors + 2 * tensor + 1)
        if (length == chunk) & (((w | g | m) & 15) == 0):
            _update(w, g, m, chunk, weight_decay, momentum, inner, outer, block, True)
        else:
            _update(w, g, m, length, weight_decay, momentum, inner, outer, block, False)


@triton.jit
@no_type_check
def _update(
    w,
    g,
    m,
    length,
    weight_decay,
    momentum,
    inner,
    outer,
    block: tl.constexpr,
    full: tl.constexpr,
):
    """Update `length` elements; `full`: whole blocks at aligned addresses."""
    w, g, m = float_pointer(w, full), float_pointer(g, full), float_pointer(m, full)
    for first in range(0, length, block):
        i = first + tl.arange(0, block)
        if full:
            weight, grad, buffer = tl.load(w + i), tl.load(g + i), tl.load(m + i)
        else:
            weight = tl.load(w + i, mask=i < length)
            grad = tl.load(g + i, mask=i < length)
            buffer = tl.load(m + i, mask=i < length)
        buffer = momentum * buffer + inner * (grad + weight_decay * weight)
        weight -= outer * buffer
        if full:
            tl.store(m + i, buffer)
            tl.store(w + i, weight)
        else:
            tl.store(m + i, buffer, mask=i < length)
            tl.store(w + i, weight, mask=i < length)
