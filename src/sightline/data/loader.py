"""Batches in an order that is a function of (seed, step): the cursor is one integer."""

import queue
import threading
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from sightline import random
from sightline.data.pictures import Pictures
from sightline.errors import UserError

AHEAD = 3  # batches that wait in pinned memory
Item = TypeVar("Item")


class Raw(NamedTuple):
    """A batch before any view is made of it, on the device."""

    pixels: UInt8[Tensor, "n c h w"]
    sizes: Int64[Tensor, "n 2"]
    labels: Int64[Tensor, " n"] | None
    index: Int64[Tensor, " n"]  # type: ignore[assignment]  # hides tuple.index, on purpose
    epoch: int


class Loader:
    """This process's part of each global batch; the order is the same for any world size."""

    def __init__(
        self,
        pictures: Pictures,
        *,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | str | None = None,
    ) -> None:
        check_batches(pictures, batch_size, world_size)
        self.pictures = pictures
        self.batch_size, self.local = batch_size, batch_size // world_size
        self.rank = rank
        self.key = random.key(seed, "order")
        self.device = pictures.device if device is None else torch.device(device)

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches of an epoch; other pictures are left over in each."""
        return len(self.pictures) // self.batch_size

    def indices(self, step: int) -> tuple[int, Int64[Tensor, " local"]]:
        """Epoch of a step, and the pictures that this process takes in it."""
        epoch, place = divmod(step, self.steps_per_epoch)
        first = place * self.batch_size + self.rank * self.local
        position = torch.arange(first, first + self.local)
        return epoch, random.shuffled(self.key, len(self.pictures), position, at=epoch)

    def batches(self, start_step: int = 0) -> Iterator[Raw]:
        """Batches from a step on, without end; the next ones are fetched meanwhile if need be."""
        made = self._made(start_step)
        if self.pictures.device.type == "cpu" and self.device.type == "cuda":
            made = ahead(map(_pinned, made), AHEAD)
        for raw in made:
            yield _moved(raw, self.device)

    def _made(self, step: int) -> Iterator[Raw]:
        labels = self.pictures.labels
        while True:
            epoch, index = self.indices(step)
            pixels, sizes = self.pictures.batch(index)
            mine = None if labels is None else labels[index.to(labels.device)]
            yield Raw(pixels, sizes, mine, index, epoch)
            step += 1


def ahead(items: Iterator[Item], count: int) -> Iterator[Item]:
    """The same items, made in a thread while earlier ones are used."""
    ready: queue.Queue[tuple[Item] | BaseException | None] = queue.Queue(count)
    closed = threading.Event()

    def put(item: tuple[Item] | BaseException | None) -> None:
        while not closed.is_set():
            try:
                return ready.put(item, timeout=0.1)
            except queue.Full:
                continue

    def work() -> None:
        try:
            for item in items:
                put((item,))
                if closed.is_set():
                    return
            put(None)
        except BaseException as error:  # to be raised where the items are used
            put(error)

    worker = threading.Thread(target=work, name="batches", daemon=True)
    worker.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item[0]
    finally:
        closed.set()
        worker.join()


def _pinned(raw: Raw) -> Raw:
    labels = None if raw.labels is None else raw.labels.pin_memory()
    pixels, sizes, index = (x.pin_memory() for x in (raw.pixels, raw.sizes, raw.index))
    return Raw(pixels, sizes, labels, index, raw.epoch)


def _moved(raw: Raw, device: torch.device) -> Raw:
    labels = None if raw.labels is None else raw.labels.to(device, non_blocking=True)
    pixels, sizes, index = (
        x.to(device, non_blocking=True) for x in (raw.pixels, raw.sizes, raw.index)
    )
    return Raw(pixels, sizes, labels, index, raw.epoch)


def check_batches(pictures: Pictures, batch_size: int, world_size: int) -> None:
    """Refuse pictures that do not fill two batches."""
    if batch_size < 1 or batch_size % world_size:
        raise UserError(
            f"batch_size is {batch_size}, which {world_size} processes cannot share equally. Use a "
            f"multiple of {world_size}."
        )
    count = len(pictures)
    if count >= 2 * batch_size:
        return
    largest = count // 2 // world_size * world_size
    skipped = f" ({len(pictures.skipped)} more could not be read)" if pictures.skipped else ""
    advice = (
        f"Use --batch-size {largest} or smaller, or add pictures."
        if largest >= 2
        else f"Add pictures: {4 * world_size} would be the least for {world_size} process(es)."
    )
    raise UserError(
        f"There are {count} pictures{skipped}, but two batches of {batch_size} need "
        f"{2 * batch_size}. {advice}"
    )
