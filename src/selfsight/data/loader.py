"""Batches in an order that is a function of (seed, step): the cursor is one integer."""

import contextlib
import itertools
import queue
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Int64
from torch import Tensor

from selfsight.data.image_store import Images
from selfsight.data.order import Order
from selfsight.data.wait_timer import Waits
from selfsight.errors import UserError
from selfsight.ragged import Ragged

AHEAD = 3  # batches that are ready before they are used
EXPECTED = 4  # batches beyond these that are read and decoded meanwhile
TOGETHER = 64  # steps whose order is computed at once
Item = TypeVar("Item")


class Raw(NamedTuple):
    """A batch before any view is made of it, on the device."""

    images: Ragged
    labels: Int64[Tensor, " n"] | None
    index: Int64[Tensor, " n"]  # type: ignore[assignment]  # hides tuple.index, on purpose
    epoch: int


class Loader:
    """This process's part of each global batch; the order is the same for any world size.

    `waited` grows by the seconds in which the device had no batch to work on.
    """

    def __init__(
        self,
        images: Images,
        *,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | str | None = None,
    ) -> None:
        check_batches(images, batch_size, world_size)
        self.images = images
        self.batch_size, self.local, self.rank = batch_size, batch_size // world_size, rank
        self.device = _whole(images.device if device is None else torch.device(device))
        self.order = Order(
            count=len(images), batch_size=batch_size, seed=seed, shards=images.shards
        )
        self.waits = Waits(self.device)
        self.computed: dict[tuple[int, int], Tensor] = {}

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches of an epoch; other images are left over in each."""
        return len(self.images) // self.batch_size

    @property
    def waited(self) -> float:
        """Seconds in which the device had no batch to work on."""
        return self.waits.seconds

    @property
    def resident(self) -> bool:
        """Whether all pixels lie on the device: every batch then shares one `flat`."""
        return self.images.kept and self.images.device == self.device

    def indices(self, step: int) -> tuple[int, Int64[Tensor, " local"]]:
        """Epoch of a step, and the images that this process takes in it."""
        epoch, place = divmod(step, self.steps_per_epoch)
        block, row = divmod(place, TOGETHER)
        rows = self.computed.get((epoch, block))
        if rows is None:
            steps = torch.arange(block * TOGETHER, (block + 1) * TOGETHER)
            first = steps[steps < self.steps_per_epoch] * self.batch_size + self.rank * self.local
            position = first[:, None] + torch.arange(self.local)
            rows = self.order.images(epoch, position.flatten()).view(position.shape)
            # Only the blocks that steps ahead of each other can touch are worth keeping.
            self.computed = dict([*self.computed.items()][-1:]) | {(epoch, block): rows}
        return epoch, rows[row]

    def batches(self, start_step: int = 0) -> Iterator[Raw]:
        """Yield the batches from a step on, without end."""
        steps = (self.indices(step) for step in itertools.count(start_step))
        yield from read_batches(self.images, steps, self.device, self.waits)


def read_batches(
    images: Images,
    batches: Iterable[tuple[int, Int64[Tensor, " _"]]],
    device: torch.device,
    waits: Waits | None = None,
) -> Iterator[Raw]:
    """Yield the images of each (epoch, index) on the device, in this order.

    Images that are not on the device are read, decoded and copied in the background. Training and
    evaluation both read through this function.
    """
    device = _whole(device)
    waits = waits or Waits(device)
    if images.kept and images.device.type == "cuda" and images.device != device:
        images = images.to(device)
    labels = None if images.labels is None else images.labels.cpu()
    if images.kept and images.device == device:
        yield from _resident_batches(images, labels, batches, waits)
        return
    with contextlib.closing(ahead(_fetch(images, labels, batches, device), AHEAD)) as fetched:
        while True:
            with waits.one():
                item = next(fetched, None)
                if item is not None and item[1] is not None:
                    _take_over(*item)
            if item is None:
                return
            yield item[0]


def _resident_batches(
    images: Images,
    labels: Tensor | None,
    batches: Iterable[tuple[int, Tensor]],
    waits: Waits,
) -> Iterator[Raw]:
    """Batches of images whose pixels are all on the device: only numbers are copied to it."""
    for epoch, index in batches:
        # On a CPU this is no waiting; the host must not run too far ahead of a GPU.
        with waits.one() if images.device.type == "cuda" else contextlib.nullcontext():
            starts, sizes = images.where(index)
            # The largest size of the whole set, so that shapes are the same for every batch.
            ragged = Ragged(images.flat, starts, sizes, images.channels, images.largest)
            raw = _moved(Raw(ragged, _rows(labels, index), index, epoch), images.device)
        yield raw


def _fetch(
    images: Images,
    labels: Tensor | None,
    batches: Iterable[tuple[int, Tensor]],
    device: torch.device,
) -> Iterator[tuple[Raw, Any]]:
    """Batches, each with the event of its copy to the GPU; runs in a thread of its own."""
    iterator = iter(batches)
    expected: deque[tuple[int, Tensor]] = deque()
    side = torch.cuda.Stream(device) if device.type == "cuda" else None

    def allocate(count: int) -> Tensor:
        # Torch reuses pinned memory once the copy from it is done.
        return torch.empty(count, dtype=torch.uint8, pin_memory=side is not None)

    while True:
        while len(expected) < EXPECTED and (item := next(iterator, None)) is not None:
            images.expect(item[1])
            expected.append(item)
        if not expected:
            return
        epoch, index = expected.popleft()
        # A thread starts out on the first GPU, whichever the process uses.
        with torch.cuda.stream(side) if side else contextlib.nullcontext():
            ragged, index = images.packed(index, allocate)
            raw = _moved(Raw(ragged, _rows(labels, index), index, epoch), device)
            copied = side.record_event() if side else None
        yield raw, copied


def _rows(labels: Tensor | None, index: Tensor) -> Tensor | None:
    return None if labels is None else labels[index]


def ahead(items: Iterator[Item], count: int) -> Generator[Item]:
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


def _moved(raw: Raw, device: torch.device) -> Raw:
    """The batch on a device: its numbers travel in one pinned piece, its pixels if they must."""
    if device.type != "cuda":
        return raw
    images, labels, n = raw.images, raw.labels, len(raw.index)
    parts = [images.starts, images.sizes.flatten(), raw.index]
    parts += [] if labels is None else [labels]
    numbers = torch.cat(parts).pin_memory().to(device, non_blocking=True)
    starts, sizes, index = numbers[:n], numbers[n : 3 * n].view(n, 2), numbers[3 * n : 4 * n]
    flat = images.flat.to(device, non_blocking=True)
    return Raw(
        images._replace(flat=flat, starts=starts, sizes=sizes),
        None if labels is None else numbers[4 * n :],
        index,
        raw.epoch,
    )


def _take_over(raw: Raw, copied: Any) -> None:
    """Let the stream in use wait for the copy, and the memory for the stream."""
    here = torch.cuda.current_stream(raw.index.device)
    here.wait_event(copied)
    raw.images.flat.record_stream(here)
    raw.index.record_stream(here)  # all numbers share its memory


def _whole(device: torch.device) -> torch.device:
    """A device with its number, so that it can be compared."""
    alone = device.type == "cuda" and device.index is None
    return torch.device("cuda", torch.cuda.current_device()) if alone else device


def check_batches(images: Images, batch_size: int, world_size: int) -> None:
    """Refuse images that do not fill two batches."""
    if batch_size < 1 or batch_size % world_size:
        raise UserError(
            f"batch_size is {batch_size}, which {world_size} processes cannot share equally. Use a "
            f"multiple of {world_size}."
        )
    count = len(images)
    if count >= 2 * batch_size:
        return
    largest = count // 2 // world_size * world_size
    skipped = f" ({len(images.skipped)} more could not be read)" if images.skipped else ""
    advice = (
        f"Use --batch-size {largest} or smaller, or add images."
        if largest >= 2
        else f"Add images: {4 * world_size} would be the least for {world_size} process(es)."
    )
    raise UserError(
        f"There are {count} images{skipped}, but two batches of {batch_size} need "
        f"{2 * batch_size}. {advice}"
    )
