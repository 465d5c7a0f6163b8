"""Batches larger than memory, encoded some images at a time with the gradient of the whole.

Only the backbone is cut: its activations fill the memory, while heads and losses see the whole
batch. A chunk's activations are thrown away and made anew when its gradient is due (Chen et al.
2016, arXiv:1604.06174): one chunk is in memory at a time, for the price of a second forward pass.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from selfsight.compile_options import COMPILE_OPTIONS
from selfsight.errors import UserError
from selfsight.nn.batch_norm import BatchNorm, Statistics
from selfsight.nn.encoder import Teacher, encoders

Run = Callable[..., Tensor]


def chunked(method: nn.Module, size: int, *, compiled: bool = False) -> None:
    """Let every backbone of a method encode `size` images at a time; names stay as they are.

    `compiled` compiles what a chunk runs: once, where compiling the method would repeat the
    network for each chunk. A teacher with several views of an image takes as many times more.
    """
    teachers = [part for part in method.modules() if isinstance(part, Teacher)]
    views = {id(teacher.net): teacher.keys_each for teacher in teachers}
    for encoder in encoders(method):
        backbone, rows = encoder.backbone, size * views.get(id(encoder), 1)
        refuse_chunk(rows, backbone)
        norms = batch_norms(backbone)
        for name in (
            "forward",
            "forward_to_stage",
            "forward_from_stage",
        ):
            if (run := getattr(backbone, name, None)) is not None:
                run = torch.compile(run, **COMPILE_OPTIONS) if compiled else run
                setattr(backbone, name, partial(in_chunks, run, norms, rows))


def refuse_chunk(size: int, backbone: nn.Module) -> None:
    """Raise a UserError for chunks in which this backbone's norms would not see whole groups."""
    if size < 1:
        raise UserError(f"chunk is {size}; it counts images. Give 1 or more, or none for all.")
    for group in {norm.group for norm in batch_norms(backbone)}:
        if group is None:
            raise UserError(
                f"chunk is {size}, but the backbone's batch norm is over the whole batch, which no "
                "chunk sees. Use groups that lie within a chunk (--method.bn split "
                "--method.bn-group N, with N a divisor of the chunk), or a norm of single images "
                "(--method.norm ln)."
            )
        if size % group:
            raise UserError(
                f"chunk is {size}, which cuts through batch norm's groups of {group} "
                "(method.bn_group). Use a chunk that is a multiple of the group."
            )


def batch_norms(backbone: nn.Module) -> list[BatchNorm]:
    """The norms whose statistics depend on who else is in the batch."""
    return [part for part in backbone.modules() if isinstance(part, BatchNorm)]


def in_chunks(run: Run, norms: list[BatchNorm], size: int, x: Tensor, *rest: Any) -> Tensor:
    """What `run` gives for the whole batch, in the memory of `size` rows."""
    if len(x) <= size:  # also what `run` asks of itself, as ResNet's forward does of its stages
        return run(x, *rest)
    norms = [norm for norm in norms if norm.training]
    for norm in norms:
        if norm.group is None or len(x) % norm.group:
            raise UserError(
                f"A process encodes {len(x)} images in chunks, which do not make whole groups of "
                f"{norm.group} for batch norm. Use a batch_size whose share on each process is a "
                "multiple of method.bn_group, or no chunk."
            )
    encode = partial(encoded, run, norms)
    if torch.is_grad_enabled():
        encode = partial(checkpoint, encode, use_reentrant=False)
    parts = [encode(part, *rest) for part in x.split(size)]
    for norm, *calls in zip(norms, *(found for _, found in parts), strict=True):
        for call in zip(*calls, strict=True):  # a norm may be used more than once
            norm.track(*call)
    return torch.cat([out for out, _ in parts])


def encoded(
    run: Run, norms: list[BatchNorm], x: Tensor, *rest: Any
) -> tuple[Tensor, list[list[Statistics]]]:
    """The features of a chunk, and what each norm would have tracked.

    Statistics are handed back, not tracked, so that computing a chunk again counts nothing twice.
    """
    with set_aside(norms) as found:
        out = run(x, *rest)
    return out, found


@contextlib.contextmanager
def set_aside(norms: list[BatchNorm]) -> Iterator[list[list[Statistics]]]:
    """Lists that take the norms' statistics, a list for each norm."""
    found: list[list[Statistics]] = [[] for _ in norms]
    for norm, own in zip(norms, found, strict=True):
        norm.aside = own
    try:
        yield found
    finally:  # computing a chunk again ends early, by an exception
        for norm in norms:
            norm.aside = None
