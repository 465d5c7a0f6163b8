import itertools
from collections import deque

import numpy as np
import pytest
import torch

from selfsight.data import Loader
from selfsight.data.image_order import WINDOW_CHUNKS, Order
from selfsight.data.sources import shard_reader
from selfsight.data.sources.source import LazyNames, Source
from selfsight.data.stream import StreamedImages
from selfsight.errors import UserError

GRAY = np.zeros((2, 2, 3), np.uint8)
IMAGE = shard_reader.OBJECT_BYTES + GRAY.nbytes


class CountedSource:
    """A data set of chunks that records what is read."""

    def __init__(self, count=10**6, chunk=10, starts=None):
        self.alone, self.runs, self.fail = [], [], set()
        self.source = Source(
            "x",
            LazyNames(count, str),
            None,
            (),
            self.read,
            shard_starts=np.arange(0, count + 1, 10_000) if starts is None else starts,
            chunk_size=chunk,
            read_range=self.read_range,
        )

    def read(self, i):
        self.alone.append(i)
        return GRAY

    def read_range(self, first, behind):
        self.runs.append(first)
        if first in self.fail:
            raise OSError("not now")
        return [GRAY] * (behind - first)

    def streamed(self):
        return StreamedImages(self.source, store_size=2, channels=3, workers=1)


def held(images):
    reader = images.reader
    return sum(chunk.bytes for chunk in reader.chunks.values())


def an_epoch(counted, batch):
    """Its steps as a loader takes them, five under way, without decoding; what is held at each."""
    images, under_way = counted.streamed(), deque()
    order = Order(count=len(images), batch_size=batch, seed=0, shards=images.shards)
    for part in order.images(0, torch.arange(len(images) // batch * batch)).split(batch):
        under_way.append((part.tolist(), images.reader.acquire(part.tolist())))
        if len(under_way) > 5:
            index, needed = under_way.popleft()
            for i in index:
                images.reader.read(i)
            images.reader.release(needed)
            yield order, set(images.reader.chunks)


@pytest.mark.parametrize(("world_size", "local"), [(1, 512), (8, 128), (1000, 16)])
def test_a_chunk_that_is_needed_is_neither_dropped_nor_read_twice(monkeypatch, world_size, local):
    monkeypatch.setattr(shard_reader, "MAX_SPARE_BYTES", 0)
    monkeypatch.setattr(shard_reader.dist, "world_size", lambda: world_size)
    counted, settings = CountedSource(), dict(seed=0, rank=world_size // 2, world_size=world_size)
    loader = Loader(counted.streamed(), batch_size=world_size * local, **settings)
    batches = loader.batches(3)
    for _ in range(3):  # and five more are under way
        next(batches)
    batches.close()
    assert counted.alone == []
    assert len(counted.runs) == len(set(counted.runs))


def test_used_up_chunks_are_dropped(monkeypatch):
    monkeypatch.setattr(shard_reader, "MAX_SPARE_BYTES", 20 * 10 * IMAGE)
    images = CountedSource().streamed()
    loader = Loader(images, batch_size=16, seed=0)
    for _ in itertools.islice(loader.batches(0), 100):  # 16 lanes of 100 images, 14 chunks or so
        under_way = 5 * 16  # chunks, at most
        assert held(images) <= (16 * WINDOW_CHUNKS + under_way + 20) * 10 * IMAGE
    assert images.reader.spare_bytes <= 20 * 10 * IMAGE


def test_large_chunks_are_dropped_as_soon_as_they_are_used_up(monkeypatch):
    """Of 12 files with one row group each, two are in use at a time."""
    monkeypatch.setattr(shard_reader, "MAX_SPARE_BYTES", 0)
    for module in ("image_order", "sources.shard_reader"):
        monkeypatch.setattr(f"selfsight.data.{module}.MAX_WINDOW", 1638)
    counted = CountedSource(12 * 500, 500, np.arange(0, 6001, 500))
    for order, kept in an_epoch(counted, 50):
        assert order.lanes == (2, 1) and len(kept) <= 4


def test_a_small_data_set_is_read_once_in_many_epochs():
    counted = CountedSource(500, 10, np.array([0, 500]))
    loader = Loader(counted.streamed(), batch_size=50, seed=0)
    list(itertools.islice(loader.batches(0), 25))
    assert sorted(counted.runs) == list(range(0, 500, 10)) and counted.alone == []


@pytest.mark.parametrize("chunk", [40, 60])
def test_row_groups_of_any_size_are_read_once_an_epoch(monkeypatch, chunk):
    monkeypatch.setattr(shard_reader, "MAX_SPARE_BYTES", 0)
    rows = np.random.default_rng(chunk).integers(chunk // 2, chunk + 1, 250)
    starts = np.concatenate([[0], rows.cumsum()])
    counted = CountedSource(int(starts[-1]), chunk, starts)
    lanes = {order.lanes for order, _ in an_epoch(counted, 500)}
    assert lanes == {(50, WINDOW_CHUNKS)} and counted.alone == []
    assert set(counted.runs) <= set(starts.tolist())
    assert len(counted.runs) < len(rows) + 50


def test_chunks_that_do_not_fit_in_memory_raise(monkeypatch):
    monkeypatch.setattr(shard_reader, "free_memory", lambda: 100 * 10 * IMAGE)
    loader = Loader(CountedSource().streamed(), batch_size=2048, seed=0)
    with pytest.raises(UserError, match=r"chunks have 10 images\. Write smaller ones"):
        next(loader.batches(0))


def test_when_memory_is_short_only_chunks_of_pending_batches_stay(monkeypatch):
    counted = CountedSource()
    images = counted.streamed()
    index = torch.arange(0, 1000, 10)
    for part in index.split(20):
        images.prefetch(part)
        images.pack(part, lambda n: torch.empty(n, dtype=torch.uint8))
    assert held(images) == 100 * 10 * IMAGE
    images.prefetch(torch.tensor([5000]))
    monkeypatch.setattr(shard_reader, "free_memory", lambda: 0)
    images.prefetch(torch.tensor([6000, 7000]))
    images.pack(torch.tensor([6000, 7000]), lambda n: torch.empty(n, dtype=torch.uint8))
    assert {5000, 6000, 7000} <= set(images.reader.chunks)
    assert len(images.reader.chunks) < 103


def test_images_of_a_failed_chunk_are_read_alone_and_the_chunk_is_tried_again():
    counted = CountedSource()
    counted.fail = {20}
    images, room = counted.streamed(), lambda n: torch.empty(n, dtype=torch.uint8)
    for index in (torch.tensor([3, 23]), torch.tensor([4, 24])):
        images.prefetch(index)
        assert torch.equal(images.pack(index, room)[1], index)
        counted.fail = set()
    assert counted.alone == [23] and counted.runs == [0, 20, 20]
    assert images.skipped == []


def test_a_prefetched_batch_that_is_never_used_releases_its_chunks():
    images = CountedSource().streamed()
    for i in range(40):
        images.prefetch(torch.tensor([10 * i]))
    busy = [first for first, chunk in images.reader.chunks.items() if chunk.pending_batches]
    assert len(busy) == 16
