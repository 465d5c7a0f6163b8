"""Read chunks of shards ahead, and hold them in memory until all their images have been used."""

import contextlib
import threading
from collections import Counter, OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np

from selfsight import dist
from selfsight.data.cgroup_limits import free_memory, processes_per_machine
from selfsight.data.decoders.decode_image import Encoded
from selfsight.data.image_order import MAX_LANES, MAX_WINDOW, WINDOW_CHUNKS, Shards
from selfsight.data.sources.source import Source
from selfsight.errors import UserError
from selfsight.terminal.console import format_bytes

ChunkUses = dict[int, int]  # first image of a chunk -> how many of its images a batch needs

CHUNK_READ_THREADS = 8  # chunks of shards that are read at once: remote reads are slow
MAX_SPARE_BYTES = 1 << 30  # of chunks that no batch is known to need; or 1/8 of free memory
OBJECT_BYTES = 64  # overhead of a Python bytes object


class ShardReader:
    """Reads chunks and holds them in memory until all their images have been used.

    Chunks that a pending batch needs stay in memory. So do chunks of the current windows with
    unused images and, within a limit, some used-up ones: a small data set is read only once.
    """

    def __init__(self, source: Source, shards: Shards) -> None:
        assert source.read_range is not None
        self.name, self.read_one, self.read_range = source.name, source.read, source.read_range
        self.shards = shards
        in_windows = min(MAX_LANES * WINDOW_CHUNKS, max(1, MAX_WINDOW // shards.mean_chunk_size))
        shared = min(WINDOW_CHUNKS, in_windows) if dist.world_size() > 1 else 0  # of cut windows
        self.max_idle = -(-in_windows // dist.world_size()) + shared
        self.processes = processes_per_machine()  # which share this memory
        self.max_spare_bytes = min(MAX_SPARE_BYTES, free_memory() // 8) // self.processes
        self.threads = ThreadPoolExecutor(CHUNK_READ_THREADS, thread_name_prefix="read")
        self.lock = threading.Lock()
        self.chunks: dict[int, _Chunk] = {}
        self.idle: OrderedDict[int, None] = OrderedDict()  # unused images left; oldest first
        self.spare: OrderedDict[int, None] = OrderedDict()  # used up; oldest first
        self.spare_bytes = 0
        self.images_in_flight = 0
        self.read_images = self.read_bytes = 0

    def acquire(self, index: Sequence[int]) -> ChunkUses:
        """Start to read the chunks of these images, and keep them until `release`."""
        ranges = Counter(map(self.shards.chunk_of, index))
        with self.lock:
            for first, _ in ranges:
                if (chunk := self.chunks.get(first)) is not None:
                    self._reuse(first, chunk)
            new = sorted(r for r in ranges if r[0] not in self.chunks)
        if new and not self.read_images:  # wait for one, to learn how large chunks are
            wait([self._start_read(*new.pop(0))])
        if new:
            self._free_memory_for(new)
        for first, end in new:
            self._start_read(first, end)
        return {first: count for (first, _), count in ranges.items()}

    def release(self, uses: ChunkUses) -> None:
        """Give back the chunks of a batch."""
        with self.lock:
            for first, count in uses.items():
                chunk = self.chunks[first]
                chunk.pending_batches -= 1
                chunk.unused_images -= count
                if chunk.pending_batches:
                    continue
                if chunk.failed:  # read again when it is needed again
                    del self.chunks[first]
                elif chunk.unused_images > 0:
                    self.idle[first] = None
                else:
                    self._make_spare(first)
            while len(self.idle) > self.max_idle:
                self._make_spare(self.idle.popitem(last=False)[0])
            self._drop_spare(self.max_spare_bytes)

    def read(self, i: int) -> Encoded:
        """Read an image from its chunk if that was acquired, otherwise alone."""
        first, _ = self.shards.chunk_of(i)
        with self.lock:
            chunk = self.chunks.get(first)
        if chunk is not None:
            with contextlib.suppress(OSError, ValueError):  # most images may still be readable
                return chunk.future.result()[i - first]
        return self.read_one(i)

    def _start_read(self, first: int, end: int) -> "Future[Sequence[Encoded]]":
        chunk = _Chunk(end - first)
        with self.lock:
            self.images_in_flight += chunk.size
            chunk.future = self.threads.submit(self._read_chunk, first, end, chunk)
            self.chunks[first] = chunk
        return chunk.future

    def _read_chunk(self, first: int, end: int, chunk: "_Chunk") -> Sequence[Encoded]:
        images: Sequence[Encoded] = ()
        try:
            images = self.read_range(first, end)
        finally:
            sizes = [x.nbytes if isinstance(x, np.ndarray) else len(x) for x in images]
            with self.lock:
                chunk.bytes = OBJECT_BYTES * len(images) + sum(sizes)
                self.images_in_flight -= chunk.size
                self.read_images += len(images)
                self.read_bytes += chunk.bytes
        return images

    def _reuse(self, first: int, chunk: "_Chunk") -> None:
        chunk.pending_batches += 1
        self.idle.pop(first, None)
        if first in self.spare:
            del self.spare[first]
            self.spare_bytes -= chunk.bytes
            chunk.unused_images = chunk.size

    def _make_spare(self, first: int) -> None:
        self.spare[first] = None
        self.spare_bytes += self.chunks[first].bytes

    def _drop_spare(self, max_bytes: int) -> None:
        while self.spare and self.spare_bytes > max_bytes:
            first, _ = self.spare.popitem(last=False)
            self.spare_bytes -= self.chunks.pop(first).bytes

    def _free_memory_for(self, new: list[tuple[int, int]]) -> None:
        """Drop chunks that no pending batch needs if memory is short; raise if it still is."""
        free = free_memory() // self.processes
        with self.lock:
            images = sum(end - first for first, end in new)
            expected = (self.images_in_flight + images) * self.read_bytes
            expected //= max(1, self.read_images)
            while expected > free + self.spare_bytes and self.idle:
                self._make_spare(self.idle.popitem(last=False)[0])
            spare = self.spare_bytes
            self._drop_spare(max(0, free + spare - expected))
            # Python reuses the dropped memory, though the system may not count it as free.
            free += spare - self.spare_bytes
            in_use = sum(chunk.bytes for chunk in self.chunks.values())
        if expected > free:
            raise UserError(
                f"To stream {self.name} shuffled, {format_bytes(in_use + expected)} of it must "
                f"be in memory at once, but there is room for {format_bytes(in_use + free)}: "
                f"its chunks have {images // len(new)} images. Write smaller ones (row groups of "
                "100 to 1000 images in Parquet), or use a smaller batch size."
            )


class _Chunk:
    """Consecutive images that were read or are being read, and how many uses are left."""

    __slots__ = ("bytes", "future", "pending_batches", "size", "unused_images")
    future: Future[Sequence[Encoded]]

    def __init__(self, size: int) -> None:
        self.size = self.unused_images = size
        self.pending_batches, self.bytes = 1, 0

    @property
    def failed(self) -> bool:
        return self.future.done() and self.future.exception() is not None
