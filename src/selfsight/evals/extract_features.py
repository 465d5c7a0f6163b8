"""Extract features of many images, and yield augmented batches for training classifiers."""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor, nn

from selfsight import dist
from selfsight.data import ImageStore, read_batches
from selfsight.data.eval_transform import EvalTransform, resized_size
from selfsight.errors import UserError
from selfsight.evals.eval_images import EvalImages, Images
from selfsight.ragged_batch import Ragged
from selfsight.terminal.progress import track
from selfsight.views import View, apply_views

BATCH_SIZE = 256  # images that are encoded at once
MOVED_BATCHES = 64  # features of as many batches are moved to the host at once


class Features(NamedTuple):
    """Features of some images of a data set."""

    h: Float[Tensor, "m d"]  # at least float32
    y: Int64[Tensor, " m"] | None  # labels, if the set has any
    index: Int64[Tensor, " m"]  # type: ignore[assignment]  # of the images in the set


def features(
    backbone: nn.Module,
    images: Images,
    transform: EvalTransform,
    *,
    batch_size: int = BATCH_SIZE,
    device: torch.device | str | None = None,
    autocast: torch.dtype | None = None,
    index: Int64[Tensor, " m"] | None = None,
    progress: str | None = None,
    distributed: bool = False,
    on_host: bool = False,
) -> Features:
    """Transform and encode all images, or those in `index`, without gradients.

    Crops of an `EvalImages` are cut out of images at full size, those of a store out of its pixels.
    `device` defaults to that of the backbone; `progress` is the title of the progress bar. With
    `distributed` every process calls this function, encodes every world_size-th batch and receives
    the features of all. Batches and numbers equal those of one process. With `on_host` the features
    stay in host memory; labels and index are on the device.
    """
    index = torch.arange(len(images)) if index is None else index.cpu()
    device = torch.device(device) if device else module_device(backbone)
    store, rows = (
        images.crops(transform, index) if isinstance(images, EvalImages) else (images, index)
    )
    indices = rows.split(batch_size)
    world, rank = (dist.world_size(), dist.rank()) if distributed else (1, 0)
    num_batches = -(-len(indices) // world)
    local = [indices[min(i * world + rank, len(indices) - 1)] for i in range(num_batches)]
    encoded: list[Tensor] = []
    moved: list[Tensor] = []
    numbers: list[Tensor] = []
    with eval_mode(backbone):
        batches = encode_batches(
            backbone,
            store,
            transform,
            local,
            are_crops=store is not images,
            device=device,
            autocast=autocast,
        )
        for found, h in track(batches, progress, len(local)):
            encoded.append(h)
            numbers.append(found)  # read at the end: each one would wait for the device
            if on_host and world == 1 and len(encoded) == MOVED_BATCHES:  # many: each one waits
                moved.append(torch.cat(encoded).cpu())
                encoded.clear()
    if world > 1:
        h = _gather_batches(encoded, batch_size, world)[: len(index)]
        h = h.cpu() if on_host else h
    elif on_host:
        h = torch.cat([*moved, *(part.cpu() for part in encoded)])
    else:
        h = torch.cat(encoded)
    found = torch.cat(numbers).cpu()
    if world > 1:
        parts = [n.to(device, torch.float64)[:, None] for n in numbers]
        found = _gather_batches(parts, batch_size, world)[: len(index), 0].cpu().long()
    if not torch.equal(found, rows.cpu()):  # a stream replaces an image that cannot be read
        kept = found == rows.cpu()
        h, index = h[kept.to(h.device)], index[kept.to(index.device)]
    y = None if images.labels is None else images.labels[index.to(images.labels.device)]
    return Features(h, None if y is None else y.to(device), index.to(device))


def encode_batches(
    backbone: nn.Module,
    images: ImageStore,
    transform: EvalTransform,
    batches: Iterable[Int64[Tensor, " _"]],
    *,
    are_crops: bool,
    device: torch.device,
    autocast: torch.dtype | None = None,
) -> Iterator[tuple[Int64[Tensor, " n"], Float[Tensor, "n d"]]]:
    """Yield numbers and features of each batch of a backbone in evaluation mode.

    The next batches are read, decoded and copied meanwhile. `are_crops`: the images need only to
    be normalized.
    """
    for raw in read_batches(images, ((0, part) for part in batches), device):
        crops = _stack(raw.images, transform) if are_crops else crop(raw.images, transform)
        if crops.is_cuda:  # `encode` needs this layout, and bytes are faster to rearrange
            crops = crops.contiguous(memory_format=torch.channels_last)
        yield raw.index, encode(backbone, transform.normalize(crops), autocast)


def _stack(crops: Ragged, transform: EvalTransform) -> Shaped[Tensor, "n c s s"]:
    """The crops as one batch: all have the same size, so that each is one row of the pixels."""
    shape = (crops.channels, transform.size, transform.size)
    area = math.prod(shape)
    if crops.flat.dtype != torch.uint8 or len(crops.flat) % area:
        return crops.padded()
    return crops.flat.view(-1, *shape)[crops.starts // area]


def _gather_batches(rows: list[Tensor], batch_size: int, world: int) -> Float[Tensor, "m d"]:
    """The rows of all processes, in the order of the batches."""
    padded = [torch.cat([r, r.new_zeros(batch_size - len(r), r.shape[1])]) for r in rows]
    gathered = dist.gather(torch.cat(padded)).view(world, len(rows), batch_size, -1)
    return gathered.transpose(0, 1).flatten(0, 2)


def crop(images: Ragged, transform: EvalTransform) -> Shaped[Tensor, "n c s s"]:
    """Crop stored images by the transform: on the CPU, unless nothing has to be resized."""
    sizes = images.sizes.unique(dim=0).tolist()
    if len(sizes) == 1 and list(resized_size(sizes[0], transform)) == sizes[0]:
        top, left = (round((side - transform.size) / 2) for side in sizes[0])
        end = top + transform.size, left + transform.size
        return images.padded()[:, :, top : end[0], left : end[1]].contiguous()
    pixels = images.padded().cpu().permute(0, 2, 3, 1).numpy()
    crops = [
        torch.from_numpy(transform.crop(x[:height, :width]))
        for x, (height, width) in zip(pixels, images.sizes.tolist(), strict=True)
    ]
    return torch.stack(crops).permute(0, 3, 1, 2).contiguous().to(images.flat.device)


@torch.no_grad()
def encode(
    backbone: nn.Module, x: Float[Tensor, "n c h w"], autocast: torch.dtype | None = None
) -> Float[Tensor, "n d"]:
    """Encode a batch without gradients; the features are at least float32."""
    dtype = next(backbone.parameters(), x).dtype
    if x.is_cuda:  # convolutions run up to twice as fast in this layout
        x = x.contiguous(memory_format=torch.channels_last)
    try:
        with torch.autocast(x.device.type, autocast, enabled=autocast is not None):
            h = backbone(x.to(dtype))
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, AssertionError) as error:  # raised for an unsupported size
        c, height, width = x.shape[1:]
        raise UserError(
            f"The backbone cannot encode images of {height} x {width} with {c} channels: {error}. "
            "Give images of the size and channels that it was built for."
        ) from error
    if h.ndim != 2 or len(h) != len(x):
        raise UserError(
            f"The backbone returned {tuple(h.shape)} for {len(x)} images; expected is one row of "
            "features per image. Pool its feature maps and remove its classifier."
        )
    return h.to(torch.promote_types(h.dtype, torch.float32))


class AugmentedBatch(NamedTuple):
    """Random crops of a batch, and the keys of their random numbers."""

    x: Float[Tensor, "n c s s"]
    index: Int64[Tensor, " n"]  # type: ignore[assignment]
    epoch: Int64[Tensor, "n 1"]  # of each row; repeats of an image have different numbers


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
    """The device of the weights; the CPU for a module without any."""
    return next((p.device for p in backbone.parameters()), torch.device("cpu"))


@contextmanager
def eval_mode(backbone: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode; on exit every submodule returns to its mode."""
    modes = [(module, module.training) for module in backbone.modules()]
    backbone.eval()
    # Compiled modules would recompile for the other mode and for other shapes.
    compiled = any(module._compiled_call_impl is not None for module, _ in modes)
    try:
        with torch.compiler.set_stance("force_eager") if compiled else nullcontext():
            yield
    finally:
        for module, training in modes:
            module.training = training
