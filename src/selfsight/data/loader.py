"""Batches in an order that is a function of (seed, step): the position is one integer."""

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

from selfsight.data.data_wait import WaitTimer
from selfsight.data.image_order import Order
from selfsight.data.image_store import CachedImages, ImageStore
from selfsight.errors import UserError
from selfsight.ragged_batch import Ragged

PREFETCH = 3  # batches that are ready before they are used
DECODE_AHEAD = 4  # batches beyond these that are being read and decoded
ORDER_STEPS = 64  # steps whose order is computed at once
Item = TypeVar("Item")


class RawBatch(NamedTuple):
    """Images, labels and indices of a batch on the device, before augmentation."""

    images: Ragged
    labels: Int64[Tensor, " n"] | None
    index: Int64[Tensor, " n"]  # type: ignore[assignment]  # hides tuple.index, on purpose
    epoch: int


class Loader:
    """Loads this process's share of each global batch; the order holds for any world size."""

    def __init__(
        self,
        images: ImageStore,
        *,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | str | None = None,
    ) -> None:
        check_batch_size(images, batch_size, world_size)
        self.images = images
        self.batch_size, self.local_batch_size = batch_size, batch_size // world_size
        self.rank = rank
        self.device = _with_index(images.device if device is None else torch.device(device))
        self.order = Order(
            count=len(images), batch_size=batch_size, seed=seed, shards=images.shards
        )
        self.wait_timer = WaitTimer(self.device)
        self.order_cache: dict[tuple[int, int], Tensor] = {}

    @property
    def steps_per_epoch(self) -> int:
        """Full batches per epoch; the images that are left over differ from epoch to epoch."""
        return len(self.images) // self.batch_size

    @property
    def wait_seconds(self) -> float:
        """Seconds so far in which the device had no batch to work on."""
        return self.wait_timer.seconds

    @property
    def resident(self) -> bool:
        """Whether all pixels are in the memory of the device: all batches then share one `flat`."""
        return isinstance(self.images, CachedImages) and self.images.device == self.device

    def indices(self, step: int) -> tuple[int, Int64[Tensor, " local"]]:
        """Epoch of a step, and this process's images of that step."""
        epoch, step_in_epoch = divmod(step, self.steps_per_epoch)
        block, row = divmod(step_in_epoch, ORDER_STEPS)
        rows = self.order_cache.get((epoch, block))
        if rows is None:
            steps = torch.arange(block * ORDER_STEPS, (block + 1) * ORDER_STEPS)
            steps = steps[steps < self.steps_per_epoch]
            first = steps * self.batch_size + self.rank * self.local_batch_size
            position = first[:, None] + torch.arange(self.local_batch_size)
            rows = self.order.images(epoch, position.flatten()).view(position.shape)
            # Steps that are prefetched and the current step touch at most two blocks.
            self.order_cache = dict([*self.order_cache.items()][-1:]) | {(epoch, block): rows}
        return epoch, rows[row]

    def batches(self, start_step: int = 0) -> Iterator[RawBatch]:
        """Yield the batches from a step on, without end."""
        steps = (self.indices(step) for step in itertools.count(start_step))
        yield from read_batches(self.images, steps, self.device, self.wait_timer)


def read_batches(
    images: ImageStore,
    batches: Iterable[tuple[int, Int64[Tensor, " _"]]],
    device: torch.device,
    wait_timer: "WaitTimer | None" = None,
) -> Iterator[RawBatch]:
    """Yield the images of each (epoch, index) on the device, in this order.

    Images that are not on the device are read, decoded and copied in the background. Training and
    evaluation both read through this function.
    """
    device = _with_index(device)
    wait_timer = wait_timer or WaitTimer(device)
    if isinstance(images, CachedImages) and images.device.type == "cuda":
        images = images if images.device == device else images.to(device)
    labels = None if images.labels is None else images.labels.cpu()
    if isinstance(images, CachedImages) and images.device == device:
        yield from _resident_batches(images, labels, batches, wait_timer)
        return
    copies = _copied_batches(images, labels, batches, device)
    with contextlib.closing(prefetch(copies, PREFETCH)) as prefetched:
        while True:
            with wait_timer.measure():
                item = next(prefetched, None)
                if item is not None and item[1] is not None:
                    _use_on_current_stream(*item)
            if item is None:
                return
            yield item[0]


def _resident_batches(
    images: CachedImages,
    labels: Tensor | None,
    batches: Iterable[tuple[int, Tensor]],
    wait_timer: "WaitTimer",
) -> Iterator[RawBatch]:
    """Yield batches of images whose pixels are all on the device: only numbers are copied."""
    for epoch, index in batches:
        # Selecting images in memory is not waiting; but the CPU must not run ahead of a GPU.
        on_gpu = images.device.type == "cuda"
        with wait_timer.measure() if on_gpu else contextlib.nullcontext():
            starts, sizes = images.locate(index)
            # The largest image of the data set, so that shapes do not change between batches.
            ragged = Ragged(images.flat, starts, sizes, images.channels, images.largest)
            raw = _copy_to(RawBatch(ragged, _select(labels, index), index, epoch), images.device)
        yield raw


def _copied_batches(
    images: ImageStore,
    labels: Tensor | None,
    batches: Iterable[tuple[int, Tensor]],
    device: torch.device,
) -> Iterator[tuple[RawBatch, Any]]:
    """Yield batches, each with the event of its copy to the GPU; runs in its own thread."""
    iterator = iter(batches)
    announced: deque[tuple[int, Tensor]] = deque()
    copy_stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def allocate(count: int) -> Tensor:
        # torch reuses pinned memory once the copy from it is done.
        return torch.empty(count, dtype=torch.uint8, pin_memory=copy_stream is not None)

    while True:
        while len(announced) < DECODE_AHEAD and (item := next(iterator, None)) is not None:
            images.prefetch(item[1])
            announced.append(item)
        if not announced:
            return
        epoch, index = announced.popleft()
        # A new thread uses the first GPU, whichever the process uses.
        with torch.cuda.stream(copy_stream) if copy_stream else contextlib.nullcontext():
            ragged, index = images.pack(index, allocate)
            raw = _copy_to(RawBatch(ragged, _select(labels, index), index, epoch), device)
            copied = copy_stream.record_event() if copy_stream else None
        yield raw, copied


def _select(labels: Tensor | None, index: Tensor) -> Tensor | None:
    return None if labels is None else labels[index]


def prefetch(items: Iterator[Item], count: int) -> Generator[Item]:
    """Yield the same items; up to `count` of them are computed ahead in a thread."""
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
        except BaseException as error:  # raised again by the consumer
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


def _copy_to(raw: RawBatch, device: torch.device) -> RawBatch:
    """Copy a batch to a GPU: its numbers in one pinned tensor, and its pixels if necessary."""
    if device.type != "cuda":
        return raw
    images, labels, n = raw.images, raw.labels, len(raw.index)
    columns = [images.starts, images.sizes.flatten(), raw.index]
    columns += [] if labels is None else [labels]
    numbers = torch.cat(columns).pin_memory().to(device, non_blocking=True)
    starts, sizes, index = numbers[:n], numbers[n : 3 * n].view(n, 2), numbers[3 * n : 4 * n]
    flat = images.flat.to(device, non_blocking=True)
    return RawBatch(
        images._replace(flat=flat, starts=starts, sizes=sizes),
        None if labels is None else numbers[4 * n :],
        index,
        raw.epoch,
    )


def _use_on_current_stream(raw: RawBatch, copied: Any) -> None:
    """Let the current stream wait for the copy, and keep the memory until that stream is done."""
    stream = torch.cuda.current_stream(raw.index.device)
    stream.wait_event(copied)
    raw.images.flat.record_stream(stream)
    raw.index.record_stream(stream)  # starts, sizes and labels share its memory


def _with_index(device: torch.device) -> torch.device:
    """A CUDA device with its index, so that devices can be compared."""
    unnumbered = device.type == "cuda" and device.index is None
    return torch.device("cuda", torch.cuda.current_device()) if unnumbered else device


def check_batch_size(images: ImageStore, batch_size: int, world_size: int) -> None:
    """Check that processes can share a batch, and that there are images for two batches."""
    check_image_count(len(images), len(images.skipped), batch_size, world_size)


def check_image_count(count: int, unreadable: int, batch_size: int, world_size: int) -> None:
    """Check numbers of images: that can be read, and that cannot."""
    if batch_size < 1 or batch_size % world_size:
        raise UserError(
            f"batch_size is {batch_size}, which {world_size} processes cannot share equally. Use a "
            f"multiple of {world_size}, or a number of processes that divides {batch_size}."
        )
    if count >= 2 * batch_size:
        return
    largest = count // 2 // world_size * world_size
    skipped = f" ({unreadable} more could not be read)" if unreadable else ""
    advice = (
        f"Use --batch-size {largest} or smaller, or add images."
        if largest >= 2
        else f"Add images: {world_size} process(es) need at least {4 * world_size}."
    )
    raise UserError(
        f"There are {count} images{skipped}, but two batches of {batch_size} need "
        f"{2 * batch_size}. {advice}"
    )
