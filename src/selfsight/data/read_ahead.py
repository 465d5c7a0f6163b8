"""Pieces of neighbors that are read in one go, kept as long as batches need them."""

import contextlib
import os
import threading
from collections import Counter, OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np

from selfsight import dist
from selfsight.data.order import LANES, PIECES, WINDOW, Shards
from selfsight.data.pixel_cache import free_memory
from selfsight.data.source import Source
from selfsight.errors import UserError

READERS = 8  # pieces that are read at once: remote ones take their time
SPARE = 1 << 30  # bytes of pieces that no batch is known to need; or 1/8 of what is free
OBJECT = 64  # bytes that Python takes for an image beside its own
Encoded = bytes | np.ndarray
Needed = dict[int, int]  # by the first image of a piece: how many of its images


class Pieces:
    """Reads pieces ahead; the order says that each will serve all its images, not when.

    What a batch under way needs stays. So do pieces of the windows that are not used up and, within
    a bound, some that are: small sets are read once.
    """

    def __init__(self, source: Source, shards: Shards) -> None:
        assert source.read_run is not None
        self.name, self.alone, self.together = source.name, source.read, source.read_run
        self.shards = shards
        in_windows = min(LANES * PIECES, max(1, WINDOW // shards.typical))
        shared = min(PIECES, in_windows) if dist.world_size() > 1 else 0  # by lanes cut in two
        self.windows = -(-in_windows // dist.world_size()) + shared
        self.beside = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # processes in this memory
        self.allowed = min(SPARE, free_memory() // 8) // self.beside
        self.readers = ThreadPoolExecutor(READERS, thread_name_prefix="read")
        self.lock = threading.Lock()
        self.held: dict[int, _Piece] = {}
        self.idle: OrderedDict[int, None] = OrderedDict()  # of the windows; oldest first
        self.spare: OrderedDict[int, None] = OrderedDict()
        self.spare_bytes = 0
        self.coming = 0  # images in pieces that are being read
        self.read_images = self.read_bytes = 0

    def need(self, index: Sequence[int]) -> Needed:
        """Begin to read what these images lie in, and keep that until it is released."""
        runs = Counter(map(self.shards.run, index))
        with self.lock:
            for first, _ in runs:
                if (piece := self.held.get(first)) is not None:
                    self._take(first, piece)
            new = sorted(run for run in runs if run[0] not in self.held)
        if new and not self.read_images:  # one, to learn how large they are
            wait([self._begin(*new.pop(0))])
        if new:
            self._make_room(new)
        for first, behind in new:
            self._begin(first, behind)
        return {first: count for (first, _), count in runs.items()}

    def release(self, needed: Needed) -> None:
        """A batch has what it needed."""
        with self.lock:
            for first, count in needed.items():
                piece = self.held[first]
                piece.uses -= 1
                piece.left -= count
                if piece.uses:
                    continue
                if piece.failed:  # to be tried again when it is needed again
                    del self.held[first]
                elif piece.left > 0:
                    self.idle[first] = None
                else:
                    self._retire(first)
            while len(self.idle) > self.windows:
                self._retire(self.idle.popitem(last=False)[0])
            self._drop(self.allowed)

    def read(self, i: int) -> Encoded:
        """From a piece that was needed; others alone, for samples from all over the set."""
        first, _ = self.shards.run(i)
        with self.lock:
            piece = self.held.get(first)
        if piece is not None:
            with contextlib.suppress(OSError, ValueError):  # one by one most may still come
                return piece.future.result()[i - first]
        return self.alone(i)

    def _begin(self, first: int, behind: int) -> "Future[Sequence[Encoded]]":
        piece = _Piece(behind - first)
        with self.lock:
            self.coming += piece.size
            piece.future = self.readers.submit(self._read, first, behind, piece)
            self.held[first] = piece
        return piece.future

    def _read(self, first: int, behind: int, piece: "_Piece") -> Sequence[Encoded]:
        data: Sequence[Encoded] = ()
        try:
            data = self.together(first, behind)
        finally:
            with self.lock:
                piece.bytes = sum(OBJECT + _size(one) for one in data)
                self.coming -= piece.size
                self.read_images += len(data)
                self.read_bytes += piece.bytes
        return data

    def _take(self, first: int, piece: "_Piece") -> None:
        piece.uses += 1
        self.idle.pop(first, None)
        if first in self.spare:
            del self.spare[first]
            self.spare_bytes -= piece.bytes
            piece.left = piece.size

    def _retire(self, first: int) -> None:
        self.spare[first] = None
        self.spare_bytes += self.held[first].bytes

    def _drop(self, allowed: int) -> None:
        while self.spare and self.spare_bytes > allowed:
            first, _ = self.spare.popitem(last=False)
            self.spare_bytes -= self.held.pop(first).bytes

    def _make_room(self, new: list[tuple[int, int]]) -> None:
        """Give up what no batch under way needs if memory is short; refuse if it still is."""
        free = free_memory() // self.beside
        with self.lock:
            images = sum(behind - first for first, behind in new)
            coming = (self.coming + images) * self.read_bytes // max(1, self.read_images)
            while coming > free + self.spare_bytes and self.idle:
                self._retire(self.idle.popitem(last=False)[0])
            spare = self.spare_bytes
            self._drop(max(0, free + spare - coming))
            # Memory that was given up is used again, though the system may not count it as free.
            free += spare - self.spare_bytes
            held = sum(piece.bytes for piece in self.held.values())
        if coming > free:
            raise UserError(
                f"To stream {self.name} shuffled, {(held + coming) / 2**30:.1f} GiB of it must be "
                f"in memory at once, but only {(held + free) / 2**30:.1f} GiB can be: its pieces "
                f"are of {images // len(new)} images. Write smaller ones (row groups of 100 "
                "to 1000 images in Parquet), or use a smaller batch size."
            )


def _size(one: Encoded) -> int:
    return one.nbytes if isinstance(one, np.ndarray) else len(one)


class _Piece:
    """What was read, or is being read, and what it is still good for."""

    __slots__ = ("bytes", "future", "left", "size", "uses")
    future: Future[Sequence[Encoded]]

    def __init__(self, size: int) -> None:
        self.size = self.left = size
        self.uses, self.bytes = 1, 0

    @property
    def failed(self) -> bool:
        return self.future.done() and self.future.exception() is not None
