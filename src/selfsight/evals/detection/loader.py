"""Batches for detectors: images at a random size, maybe flipped, with their objects.

Random numbers depend on the position of the image in the run, and a batch is padded to the largest
image of all processes, so that results do not depend on the number of processes. Unlike the loader
of `data`, this one decodes at full size and transforms boxes and masks along with the images.
"""

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from selfsight import dist, rng
from selfsight.data.cgroup_limits import available_cpus
from selfsight.data.decoders.decode_image import decode, read_header
from selfsight.data.image_limits import UnreadableError
from selfsight.errors import UserError
from selfsight.evals.detection.detector_settings import DetectorSettings
from selfsight.evals.detection.instances import DetectionDataset, decode_mask

DIVISOR = 32  # of the sides of a batch: the stride of the coarsest map
CACHE_BYTES = 4 << 30  # largest size of decoded images and masks to cache on the device
PREFETCH = 3  # batches that are decoded ahead

Size = tuple[int, int]  # height, width
Target = dict[str, Tensor]  # boxes, labels and maybe masks, in torchvision's format
Loaded = tuple[UInt8[Tensor, "_ _ _"], UInt8[Tensor, "_ _ _"] | None]  # pixels, masks


class Batch(NamedTuple):
    """Padded images of several sizes, and their objects."""

    pixels: Float[Tensor, "n c h w"]  # normalized; zeros to the right and below
    sizes: list[Size]
    targets: list[Target]
    position: Int64[Tensor, " n"]  # in the order of the run


def fit_size(size: Size, short: int, longest: int) -> Size:
    """Scale to this short side, but to at most `longest` on the long side."""
    scale = min(short / min(size), longest / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def padded_size(sizes: Iterable[Size]) -> Size:
    """The smallest size that fits all and is a multiple of DIVISOR."""
    height, width = np.array(list(sizes)).max(axis=0)
    return int(-(-height // DIVISOR) * DIVISOR), int(-(-width // DIVISOR) * DIVISOR)


def epoch_order(n: int, position: Int64[Tensor, " m"], seed: int) -> Int64[Tensor, " m"]:
    """The image at each position; every epoch has another permutation."""
    key = rng.key(seed, "detection", "order")
    chosen = torch.empty_like(position)
    for epoch in (position // n).unique().tolist():
        here = position // n == epoch
        chosen[here] = rng.shuffled(key, n, position[here] % n, at=epoch)
    return chosen


class DecodedImages:
    """Decoded images and masks of a data set, cached if all of them fit."""

    def __init__(
        self,
        objects: DetectionDataset,
        *,
        store_size: int,
        channels: int,
        masks: bool,
        device: torch.device,
    ) -> None:
        self.objects, self.store_size, self.channels = objects, store_size, channels
        self.masks, self.device = masks, device
        area = objects.sizes.prod(axis=1)
        layers = channels + (np.array([len(f.boxes) for f in objects.instances]) if masks else 0)
        fits = int((area * layers).sum()) <= CACHE_BYTES
        self.cache: dict[int, Loaded] | None = {} if fits else None

    def get(self, i: int) -> Loaded:
        """Pixels, reduced if larger than needed, and masks at the original size."""
        if self.cache is not None and i in self.cache:
            return self.cache[i]
        pixels = torch.from_numpy(self._decoded(i).transpose(2, 0, 1).copy()).to(self.device)
        masks = self._masks(i).to(self.device) if self.masks else None
        if self.cache is not None:
            self.cache[i] = pixels, masks
        return pixels, masks

    def _decoded(self, i: int) -> np.ndarray:
        objects = self.objects
        height, width = objects.sizes[i].tolist()
        try:
            data = objects.read(i)
            header = read_header(data)
            pixels = decode(data, store_size=self.store_size, channels=self.channels)
        except (UnreadableError, OSError) as error:
            raise UserError(
                f"{objects.names[i]} of {objects.name} cannot be read: {error}. Repair the file, "
                "or remove it from the annotations."
            ) from error
        if (header.height, header.width) != (height, width):
            raise UserError(
                f"{objects.names[i]} of {objects.name} is {header.width} x {header.height} pixels, "
                f"but its annotation says {width} x {height}. Correct the annotation."
            )
        return pixels

    def _masks(self, i: int) -> Tensor:
        height, width = self.objects.sizes[i].tolist()
        masks = self.objects.instances[i].masks
        assert masks is not None
        layers = [decode_mask(mask, height, width) for mask in masks]
        return torch.from_numpy(np.stack(layers) if layers else np.zeros((0, height, width), "u1"))


def resize(x: UInt8[Tensor, "c _ _"], size: Size) -> Float[Tensor, "c _ _"]:
    """Resize to values in [0, 1], antialiased."""
    return F.interpolate(x[None].float() / 255, size, mode="bilinear", antialias=True)[0]


class BatchPlan(NamedTuple):
    """The images of a batch and their sizes, before any image is decoded."""

    images: list[int]
    sizes: list[Size]
    flip: list[bool]
    position: Int64[Tensor, " n"]
    padded: Size


def plan_training_batch(
    objects: DetectionDataset, settings: DetectorSettings, step: int, seed: int
) -> BatchPlan:
    """Plan this process's part of a training step; the padded size is that of the global batch."""
    total = settings.batch_size
    position = step * total + torch.arange(total)
    index = epoch_order(len(objects), position, seed)
    u = rng.uniform(rng.key(seed, "detection", "view"), position, 2)
    short = torch.tensor(settings.short_sides)[(u[:, 0] * len(settings.short_sides)).long()]
    pairs = zip(index.tolist(), short.tolist(), strict=True)
    sizes = [fit_size(_size(objects, i), s, settings.longest) for i, s in pairs]
    local = dist.local_rows(torch.arange(total)).tolist()
    return BatchPlan(
        dist.local_rows(index).tolist(),
        [sizes[i] for i in local],
        (dist.local_rows(u[:, 1]) < 0.5).tolist(),
        dist.local_rows(position),
        padded_size(sizes),
    )


def plan_test_batches(objects: DetectionDataset, settings: DetectorSettings) -> list[BatchPlan]:
    """Plan the batches of the test set; each process gets every world_size-th."""
    plans = []
    for position in torch.arange(len(objects)).split(settings.batch_size):
        index = position.tolist()
        short, longest = settings.test_short_side, settings.longest
        sizes = [fit_size(_size(objects, i), short, longest) for i in index]
        plans.append(BatchPlan(index, sizes, [False] * len(index), position, padded_size(sizes)))
    return plans[dist.rank() :: dist.world_size()]


def load_batches(
    images: DecodedImages, plans: Iterable[BatchPlan], settings: DetectorSettings
) -> Generator[Batch, None, None]:
    """Yield the planned batches in order; the next are decoded in threads."""
    pending: deque[tuple[BatchPlan, list[Future[Loaded]]]] = deque()
    pool = ThreadPoolExecutor(available_cpus(), thread_name_prefix="decode")

    def next_batch() -> Batch:
        plan, loaded = pending.popleft()
        return collate(images, plan, [future.result() for future in loaded], settings)

    try:
        for plan in plans:
            pending.append((plan, [pool.submit(images.get, i) for i in plan.images]))
            if len(pending) > PREFETCH:
                yield next_batch()
        while pending:
            yield next_batch()
    finally:
        pool.shutdown(cancel_futures=True)


def collate(
    images: DecodedImages, plan: BatchPlan, loaded: Sequence[Loaded], settings: DetectorSettings
) -> Batch:
    """Resize, normalize and pad the images, and transform their objects."""
    device = images.device
    mean, std = (
        torch.tensor(values, device=device)[:, None, None]
        for values in (settings.mean, settings.std)
    )
    pixels = torch.zeros(len(loaded), images.channels, *plan.padded, device=device)
    targets = []
    for row, (raw, masks) in enumerate(loaded):
        (height, width), flip = plan.sizes[row], plan.flip[row]
        x = (resize(raw, (height, width)) - mean) / std
        pixels[row, :, :height, :width] = x.flip(2) if flip else x
        target = _target(images.objects, plan.images[row], masks, (height, width), flip)
        targets.append({name: value.to(device) for name, value in target.items()})
    return Batch(pixels, plan.sizes, targets, plan.position)


def _size(objects: DetectionDataset, i: int) -> Size:
    height, width = objects.sizes[i].tolist()
    return height, width


def _target(
    objects: DetectionDataset, i: int, masks: Tensor | None, size: Size, flip: bool
) -> Target:
    instances = objects.instances[i]
    scale = np.array([size[1], size[0]] * 2) / objects.sizes[i][[1, 0, 1, 0]]
    boxes = torch.from_numpy(instances.boxes * scale).float()
    if flip:
        boxes = torch.stack(
            [size[1] - boxes[:, 2], boxes[:, 1], size[1] - boxes[:, 0], boxes[:, 3]], dim=1
        )
    # Class 0 is the background.
    target = {"boxes": boxes, "labels": torch.from_numpy(instances.labels + 1)}
    if masks is not None:
        layers = F.interpolate(masks[:, None].float(), size)[:, 0].byte()
        target["masks"] = layers.flip(2) if flip else layers
    return target
