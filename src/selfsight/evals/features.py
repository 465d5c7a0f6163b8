"""Features of many images at once, and the augmented batches that classifiers learn from.

Every other file of `evals` gets its pixels and views from here.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from selfsight import dist
from selfsight.data import ImageStore, read_batches
from selfsight.errors import UserError
from selfsight.progress import track
from selfsight.views import EvalView, View, apply_eval_view, apply_views

Item = TypeVar("Item")


class Features(NamedTuple):
    """What a backbone says about some images of a set."""

    h: Float[Tensor, "m d"]  # at least float32
    y: Int64[Tensor, " m"] | None  # labels, where the set has them
    index: Int64[Tensor, " m"]  # type: ignore[assignment]  # which images of the set these are


def features(
    backbone: nn.Module,
    images: ImageStore,
    spec: EvalView,
    *,
    batch_size: int = 256,
    device: torch.device | str | None = None,
    autocast: torch.dtype | None = None,
    index: Int64[Tensor, " m"] | None = None,
    progress: str | None = None,
    shared: bool = False,
) -> Features:
    """Features of the evaluation view of all images, or of those in `index`, without a graph.

    `device` is where the backbone is, unless told; `progress` is what a bar says if this takes
    more than a moment. With `shared` every process calls this, encodes its share of the batches
    and is given all: the batches, and so the numbers, are those of one process.
    """
    index = torch.arange(len(images)) if index is None else index.cpu()
    device = torch.device(device) if device else module_device(backbone)
    parts = index.split(batch_size)
    world, rank = (dist.world_size(), dist.rank()) if shared else (1, 0)
    turns = -(-len(parts) // world)
    mine = [parts[min(t * world + rank, len(parts) - 1)] for t in range(turns)]
    rows: list[Tensor] = []
    with eval_mode(backbone):
        batches = read_batches(images, ((0, part) for part in mine), device)
        for raw in track(batches, progress, len(mine)):
            rows.append(encode(backbone, apply_eval_view(spec, raw.images), autocast))
    h = torch.cat(rows) if world == 1 else _in_turn(rows, batch_size, world)[: len(index)]
    y = None if images.labels is None else images.labels[index.to(images.labels.device)]
    return Features(h, None if y is None else y.to(device), index.to(device))


def _in_turn(rows: list[Tensor], batch_size: int, world: int) -> Float[Tensor, "m d"]:
    """The batches of all processes in the order in which they were dealt out."""
    whole = [torch.cat([r, r.new_zeros(batch_size - len(r), r.shape[1])]) for r in rows]
    gathered = dist.gather(torch.cat(whole)).view(world, len(rows), batch_size, -1)
    return gathered.transpose(0, 1).flatten(0, 2)


@torch.no_grad()
def encode(
    backbone: nn.Module, x: Float[Tensor, "n c h w"], autocast: torch.dtype | None = None
) -> Float[Tensor, "n d"]:
    """Feature rows of a batch, in at least float32, without a graph."""
    own = next(backbone.parameters(), x)
    try:
        with torch.autocast(x.device.type, autocast, enabled=autocast is not None):
            h = backbone(x.to(own.dtype))
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, AssertionError) as error:  # how networks refuse another size
        c, height, width = x.shape[1:]
        raise UserError(
            f"The backbone cannot take images of {height} x {width} with {c} channels: {error}. "
            "Give images of the size and channels that it was made for."
        ) from error
    if h.ndim != 2 or len(h) != len(x):
        raise UserError(
            f"The backbone gave {tuple(h.shape)} for {len(x)} images; one row of features for "
            "each is expected. Take its classifier off and pool its maps."
        )
    return h.to(torch.promote_types(h.dtype, torch.float32))


class AugmentedBatch(NamedTuple):
    """Random views of a batch, and what their draws were keyed by."""

    x: Float[Tensor, "n c s s"]
    index: Int64[Tensor, " n"]  # type: ignore[assignment]
    at: Int64[Tensor, "n 1"]  # each row's epoch, or a number of its own for a repeated image


def augmented_batches(
    images: ImageStore,
    batches: Iterable[Sequence[tuple[int, Int64[Tensor, " _"]]]],
    view: View,
    *,
    seed: int,
    device: torch.device,
) -> Iterator[AugmentedBatch]:
    """Yield one batch per list of (epoch, index), as crops that depend on (seed, epoch, image)."""
    num_parts: deque[int] = deque()  # of the batches that are being read

    def read_parts() -> Iterator[tuple[int, Tensor]]:
        for parts in batches:
            num_parts.append(len(parts))
            yield from parts

    loaded = read_batches(images, read_parts(), device)
    for first in loaded:
        parts = [first, *(next(loaded) for _ in range(num_parts.popleft() - 1))]
        rows = []
        for raw in parts:
            x = apply_views((view,), raw.images, raw.index, seed=seed, epoch=raw.epoch)[0]
            rows.append((x, raw.index, torch.full_like(raw.index, raw.epoch)[:, None]))
        yield AugmentedBatch(*(torch.cat(column) for column in zip(*rows, strict=True)))


def module_device(backbone: nn.Module) -> torch.device:
    """Where the weights are."""
    return next((p.device for p in backbone.parameters()), torch.device("cpu"))


@contextmanager
def eval_mode(backbone: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; afterward every part is back in the mode it had."""
    modes = [(module, module.training) for module in backbone.modules()]
    backbone.eval()
    # What training compiled would be compiled anew for another mode and other shapes.
    compiled = any(module._compiled_call_impl is not None for module, _ in modes)
    try:
        with torch.compiler.set_stance("force_eager") if compiled else nullcontext():
            yield
    finally:
        for module, training in modes:
            module.training = training
