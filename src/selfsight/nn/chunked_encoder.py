"""Encode large batches one chunk at a time, with the gradient of the whole batch.

Only the backbone is chunked: its activations fill the memory, while heads and losses need the
whole batch. A chunk's activations are discarded and recomputed in the backward pass (Chen et al.
2016, arXiv:1604.06174): one chunk is in memory at a time, at the cost of a second forward pass.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from selfsight.errors import UserError
from selfsight.nn.batch_norm import BatchNorm, Statistics


def in_chunks(
    run: Callable[..., Tensor], backbone: nn.Module, chunk_size: int | None, x: Tensor, *args: Any
) -> Tensor:
    """Compute run(x, *args), a pass through this backbone, in the memory of `chunk_size` rows."""
    if chunk_size is None or len(x) <= chunk_size:
        return run(x, *args)
    norms = [norm for norm in batch_norms(backbone) if norm.training]
    for norm in norms:
        if norm.group is None or len(x) % norm.group:
            raise UserError(
                f"A process encodes {len(x)} images in chunks, which is not a multiple of "
                f"method.bn_group ({norm.group}). Use a batch_size whose share on each process is "
                "a multiple of method.bn_group, or no chunk."
            )
    encode = partial(encode_chunk, run, norms)
    if torch.is_grad_enabled():
        encode = partial(checkpoint, encode, use_reentrant=False)
    chunks = [encode(chunk, *args) for chunk in x.split(chunk_size)]
    for norm, *collected in zip(norms, *(statistics for _, statistics in chunks), strict=True):
        for call in zip(*collected, strict=True):  # a norm may be used more than once
            norm.track(*call)
    return torch.cat([out for out, _ in chunks])


def encode_chunk(
    run: Callable[..., Tensor], norms: list[BatchNorm], x: Tensor, *args: Any
) -> tuple[Tensor, list[list[Statistics]]]:
    """The output for one chunk, and the statistics that each norm would have tracked.

    They are returned, not tracked, so that recomputing a chunk does not count it twice.
    """
    with deferred_tracking(norms) as collected:
        out = run(x, *args)
    return out, collected


@contextlib.contextmanager
def deferred_tracking(norms: list[BatchNorm]) -> Iterator[list[list[Statistics]]]:
    """Collect the statistics of each norm in a list instead of tracking them."""
    collected: list[list[Statistics]] = [[] for _ in norms]
    for norm, statistics in zip(norms, collected, strict=True):
        norm.deferred = statistics
    try:
        yield collected
    finally:  # recomputing a chunk ends early, by an exception
        for norm in norms:
            norm.deferred = None


def check_chunk_size(chunk_size: int, backbone: nn.Module) -> None:
    """Raise a UserError for chunks in which batch norm would not see whole groups."""
    if chunk_size < 1:
        raise UserError(f"chunk is {chunk_size}, a number of images. Use 1 or more, or omit it.")
    for group in {norm.group for norm in batch_norms(backbone)}:
        if group is None:
            raise UserError(
                f"chunk is {chunk_size}, but the backbone's batch norm is over the whole batch, "
                "which no chunk sees. Use groups that lie within a chunk (--method.bn split "
                "--method.bn-group N, with N a divisor of the chunk), or a norm over single images "
                "(--method.norm ln)."
            )
        if chunk_size % group:
            raise UserError(
                f"chunk is {chunk_size}, which is not a multiple of batch norm's groups of {group} "
                "(method.bn_group). Use a chunk that is."
            )


def batch_norms(module: nn.Module) -> list[BatchNorm]:
    """All norms whose statistics depend on the other images of the batch."""
    return [m for m in module.modules() if isinstance(m, BatchNorm)]
