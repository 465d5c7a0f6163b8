"""Batches for detectors: which images, how large, mirrored or not, with their objects.

Everything is drawn from the number of the image in the whole run's order, and a batch is padded
to the largest image of all processes, so that the number of processes changes nothing.
"""

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from selfsight import dist, rng
from selfsight.data.cgroup_limits import available_cpus
from selfsight.data.decode import UnreadableError, decode, read_header
from selfsight.errors import UserError
from selfsight.evals.detection.annotations import DetectionDataset, rasterized
from selfsight.evals.detection.detector_settings import DetectorSettings

DIVISOR = 32  # sides of a batch: the coarsest map of a pyramid divides them
KEPT = 4 << 30  # bytes of decoded images and masks that stay on the device
AHEAD = 3  # batches that are being decoded while one is learned from

Size = tuple[int, int]  # height, width
Target = dict[str, Tensor]  # boxes, labels and perhaps masks, as torchvision wants them
Loaded = tuple[UInt8[Tensor, "_ _ _"], UInt8[Tensor, "_ _ _"] | None]  # pixels, masks


class Batch(NamedTuple):
    """Images of several sizes in one tensor, and what is in them."""

    pixels: Float[Tensor, "n c h w"]  # normalized; zeros to the right and below
    sizes: list[Size]
    targets: list[Target]
    position: Int64[Tensor, " n"]  # in the order of the whole run


def fitted(size: Size, short: int, longest: int) -> Size:
    """The size with this short side, or with the longest long side if that is smaller."""
    scale = min(short / min(size), longest / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def padded_size(sizes: Iterable[Size]) -> Size:
    """A size that holds all these and that every stride divides."""
    height, width = np.array(list(sizes)).max(axis=0)
    return int(-(-height // DIVISOR) * DIVISOR), int(-(-width // DIVISOR) * DIVISOR)


def order(n: int, position: Int64[Tensor, " m"], seed: int) -> Int64[Tensor, " m"]:
    """Which image comes at each position: every epoch is a new permutation."""
    key = rng.key(seed, "detection", "order")
    chosen = torch.empty_like(position)
    for epoch in (position // n).unique().tolist():
        here = position // n == epoch
        chosen[here] = rng.shuffled(key, n, position[here] % n, at=epoch)
    return chosen


class DecodedImages:
    """Decoded images and masks of a set; if they fit, they are decoded once and stay."""

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
        fits = int((area * layers).sum()) <= KEPT
        self.kept: dict[int, Loaded] | None = {} if fits else None

    def get(self, i: int) -> Loaded:
        """Pixels, shrunk if they are larger than needed, and masks in the image's own size."""
        if self.kept is not None and i in self.kept:
            return self.kept[i]
        pixels = torch.from_numpy(self._decoded(i).transpose(2, 0, 1).copy()).to(self.device)
        masks = self._masks(i).to(self.device) if self.masks else None
        if self.kept is not None:
            self.kept[i] = pixels, masks
        return pixels, masks

    def _decoded(self, i: int) -> np.ndarray:
        objects = self.objects
        height, width = objects.sizes[i].tolist()
        try:
            data = objects.read(i)
            told = read_header(data)
            pixels = decode(data, store_size=self.store_size, channels=self.channels)
        except (UnreadableError, OSError) as error:
            raise UserError(
                f"{objects.names[i]} of {objects.name} cannot be read: {error}. Repair the file, "
                "or remove it from the annotations."
            ) from error
        if (told.height, told.width) != (height, width):
            raise UserError(
                f"{objects.names[i]} of {objects.name} is {told.width} x {told.height} pixels, but "
                f"its annotation says {width} x {height}. Correct the annotation."
            )
        return pixels

    def _masks(self, i: int) -> Tensor:
        height, width = self.objects.sizes[i].tolist()
        masks = self.objects.instances[i].masks
        assert masks is not None
        layers = [rasterized(mask, height, width) for mask in masks]
        return torch.from_numpy(np.stack(layers) if layers else np.zeros((0, height, width), "u1"))


def resized(x: UInt8[Tensor, "c _ _"], size: Size) -> Float[Tensor, "c _ _"]:
    """Pixels in [0, 1] at another size, without aliasing."""
    return F.interpolate(x[None].float() / 255, size, mode="bilinear", antialias=True)[0]


class Plan(NamedTuple):
    """What goes into a batch, before any image is decoded."""

    images: list[int]
    sizes: list[Size]
    mirrored: list[bool]
    position: Int64[Tensor, " n"]
    padded: Size


def training_plan(
    objects: DetectionDataset, setting: DetectorSettings, step: int, seed: int
) -> Plan:
    """This process's share of a step; every process knows the sizes of all."""
    total = setting.batch_size
    position = step * total + torch.arange(total)
    index = order(len(objects), position, seed)
    u = rng.uniform(rng.key(seed, "detection", "view"), position, 2)
    short = torch.tensor(setting.short_sides)[(u[:, 0] * len(setting.short_sides)).long()]
    pairs = zip(index.tolist(), short.tolist(), strict=True)
    sizes = [fitted(_size(objects, i), s, setting.longest) for i, s in pairs]
    mine = dist.local_rows(torch.arange(total)).tolist()
    return Plan(
        dist.local_rows(index).tolist(),
        [sizes[i] for i in mine],
        (dist.local_rows(u[:, 1]) < 0.5).tolist(),
        dist.local_rows(position),
        padded_size(sizes),
    )


def scoring_plans(objects: DetectionDataset, setting: DetectorSettings) -> list[Plan]:
    """The whole set in batches; this process's are every so-many-th."""
    plans = []
    for position in torch.arange(len(objects)).split(setting.batch_size):
        index = position.tolist()
        short, longest = setting.test_short_side, setting.longest
        sizes = [fitted(_size(objects, i), short, longest) for i in index]
        plans.append(Plan(index, sizes, [False] * len(index), position, padded_size(sizes)))
    return plans[dist.rank() :: dist.world_size()]


def batches(
    images: DecodedImages, plans: Iterable[Plan], setting: DetectorSettings
) -> Generator[Batch, None, None]:
    """The planned batches in order; a few are decoded ahead."""
    waiting: deque[tuple[Plan, list[Future[Loaded]]]] = deque()
    pool = ThreadPoolExecutor(available_cpus(), thread_name_prefix="decode")
    try:
        for plan in plans:
            waiting.append((plan, [pool.submit(images.get, i) for i in plan.images]))
            if len(waiting) > AHEAD:
                yield _next(waiting, images, setting)
        while waiting:
            yield _next(waiting, images, setting)
    finally:
        pool.shutdown(cancel_futures=True)


def _next(waiting: deque[Any], images: DecodedImages, setting: DetectorSettings) -> Batch:
    plan, loaded = waiting.popleft()
    return assembled(images, plan, [future.result() for future in loaded], setting)


def assembled(
    images: DecodedImages, plan: Plan, loaded: Sequence[Loaded], setting: DetectorSettings
) -> Batch:
    """Images and objects at their sizes, normalized and padded."""
    device = images.device
    mean, std = (
        torch.tensor(values, device=device)[:, None, None] for values in (setting.mean, setting.std)
    )
    pixels = torch.zeros(len(loaded), images.channels, *plan.padded, device=device)
    targets = []
    for row, (raw, masks) in enumerate(loaded):
        (height, width), flip = plan.sizes[row], plan.mirrored[row]
        x = (resized(raw, (height, width)) - mean) / std
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
    found = objects.instances[i]
    scale = np.array([size[1], size[0]] * 2) / objects.sizes[i][[1, 0, 1, 0]]
    boxes = torch.from_numpy(found.boxes * scale).float()
    if flip:
        boxes = torch.stack(
            [size[1] - boxes[:, 2], boxes[:, 1], size[1] - boxes[:, 0], boxes[:, 3]], dim=1
        )
    # Class 0 is the background.
    target = {"boxes": boxes, "labels": torch.from_numpy(found.labels + 1)}
    if masks is not None:
        layers = F.interpolate(masks[:, None].float(), size)[:, 0].byte()
        target["masks"] = layers.flip(2) if flip else layers
    return target
