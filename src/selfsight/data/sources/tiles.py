"""Tiles of large images: one file becomes many images at its own scale.

An image is decoded once for all of its tiles that are read one after the other. A cache reads them
in this order, and a stream reads the tiles of an image as one chunk of a shard.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from selfsight.data.cgroup_limits import available_cpus
from selfsight.data.decoders.decode_image import decode, read_header
from selfsight.data.sources.source import LazyNames, Source, digest
from selfsight.terminal.progress import DelayedProgress


class Box(NamedTuple):
    """Where a tile is in its image, in pixels."""

    top: int
    left: int
    height: int
    width: int


def count_tiles(side: int, tile: int) -> int:
    """Number of tiles along a side; a remainder of less than half a tile gets no tile."""
    return max(1, (2 * side + tile) // (2 * tile))


def place_tiles(side: int, tile: int) -> list[int]:
    """First pixel of each tile along a side, evenly from one end to the other.

    Neighbors overlap by less than half a tile, or lie less than half a tile apart.
    """
    count = count_tiles(side, tile)
    room = max(0, side - tile)
    if count == 1:
        return [room // 2]
    return [room * k // (count - 1) for k in range(count)]


def list_boxes(height: int, width: int, tile: int) -> list[Box]:
    """The tiles of an image, row by row; a side that is shorter than a tile is used as it is."""
    sides = (min(tile, height), min(tile, width))
    tops, lefts = place_tiles(height, tile), place_tiles(width, tile)
    return [Box(top, left, *sides) for top in tops for left in lefts]


def cut_tiles(source: Source, tile: int, *, channels: int, dtype: str) -> Source:
    """Turn a source of images into one of their tiles, each with the label of its image.

    The size of every image is read first. An unreadable image is one tile, which is unreadable too.
    """
    sizes = _read_sizes(source)
    counts = [count_tiles(height, tile) * count_tiles(width, tile) for height, width in sizes]
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    images = _DecodedImages(source, channels, dtype)

    def locate(i: int) -> tuple[int, Box]:
        image = int(np.searchsorted(starts, i, side="right")) - 1
        return image, list_boxes(*sizes[image], tile)[i - int(starts[image])]

    def name(i: int) -> str:
        image, box = locate(i)
        rows, columns = f"{box.top}:{box.top + box.height}", f"{box.left}:{box.left + box.width}"
        return f"{source.names[image]}[{rows},{columns}]"

    def read(i: int) -> np.ndarray:
        image, box = locate(i)
        return _cut(images.read(image), box)

    def read_range(first: int, end: int) -> Sequence[np.ndarray]:
        return [read(i) for i in range(first, end)]

    fingerprint, count = source.fingerprint, int(starts[-1])
    note = f"{count:,} tiles of {tile} px are cut from {len(source):,} images."
    return replace(
        source,
        names=LazyNames(count, name),
        labels=None if source.labels is None else np.repeat(source.labels, counts),
        multilabels=None if source.multilabels is None else source.multilabels.repeat(counts, 0),
        read=read,
        # An image that cannot be read counts as one tile, until it can be read.
        fingerprint=None
        if fingerprint is None
        else lambda: f"{fingerprint()} tiles of {tile} {digest(map(str, counts))}",
        notes=(*source.notes, note),
        shard_starts=starts,
        chunk_size=max(counts, default=1),
        read_range=read_range,
        local_path=None,
        is_decoded=True,
    )


def _cut(pixels: np.ndarray, box: Box) -> np.ndarray:
    rows, columns = slice(box.top, box.top + box.height), slice(box.left, box.left + box.width)
    return np.ascontiguousarray(pixels[rows, columns])


def _read_sizes(source: Source) -> list[tuple[int, int]]:
    """Height and width of each image; 1 x 1 where it cannot be read."""
    sizes = []
    with DelayedProgress("reading sizes", len(source)) as bar:
        for i in range(len(source)):
            try:
                header = read_header(source.read(i))
                sizes.append((header.height, header.width))
            except (OSError, ValueError):
                sizes.append((1, 1))
            bar.advance(1)
    return sizes


class _DecodedImages:
    """The images that were decoded last; threads that need the same one wait for it."""

    def __init__(self, source: Source, channels: int, dtype: str) -> None:
        self.source, self.channels, self.dtype = source, channels, dtype
        self.lock = threading.Lock()
        self.recent: OrderedDict[int, Future[np.ndarray]] = OrderedDict()
        self.most = available_cpus() + 1  # each thread that decodes is at another image

    def read(self, i: int) -> np.ndarray:
        with self.lock:
            future = self.recent.get(i)
            is_new = future is None
            if future is None:
                future = self.recent[i] = Future()
            self.recent.move_to_end(i)
            while len(self.recent) > self.most:
                self.recent.popitem(last=False)
        if is_new:
            try:
                data = self.source.read(i)
                future.set_result(
                    decode(data, store_size=None, channels=self.channels, dtype=self.dtype)
                )
            except Exception as error:  # raised again for each thread that waits
                future.set_exception(error)
        return future.result()
