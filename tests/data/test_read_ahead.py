import itertools
from collections import deque

import numpy as np
import pytest
import torch

from selfsight.data import Loader, read_ahead
from selfsight.data.order import LANES, PIECES, Order
from selfsight.data.source import Computed, Source
from selfsight.data.stream import Streamed
from selfsight.errors import UserError

GRAY = np.zeros((2, 2, 3), np.uint8)
IMAGE = read_ahead.OBJECT + GRAY.nbytes


class Counted:
    """A set that lies in pieces and remembers what was asked of it."""

    def __init__(self, count=10**6, piece=10, starts=None):
        self.alone, self.runs, self.fail = [], [], set()
        self.source = Source(
            "x",
            Computed(count, str),
            None,
            (),
            self.read,
            shards=np.arange(0, count + 1, 10_000) if starts is None else starts,
            group=piece,
            read_run=self.read_run,
        )

    def read(self, i):
        self.alone.append(i)
        return GRAY

    def read_run(self, first, behind):
        self.runs.append(first)
        if first in self.fail:
            raise OSError("not now")
        return [GRAY] * (behind - first)

    def streamed(self):
        return Streamed(self.source, store_size=2, channels=3, workers=1)


def held(images):
    kept = images.pieces
    return sum(piece.bytes for piece in kept.held.values())


def an_epoch(counted, batch):
    """Its steps as a loader takes them, five under way, without decoding; what is held at each."""
    images, under_way = counted.streamed(), deque()
    order = Order(count=len(images), batch_size=batch, seed=0, shards=images.shards)
    for part in order.images(0, torch.arange(len(images) // batch * batch)).split(batch):
        under_way.append((part.tolist(), images.pieces.need(part.tolist())))
        if len(under_way) > 5:
            index, needed = under_way.popleft()
            for i in index:
                images.pieces.read(i)
            images.pieces.release(needed)
            yield order, set(images.pieces.held)


@pytest.mark.parametrize(("world_size", "local"), [(1, 1024), (8, 256), (1000, 32)])
def test_a_piece_that_is_needed_is_neither_given_up_nor_read_twice(monkeypatch, world_size, local):
    monkeypatch.setattr(read_ahead, "SPARE", 0)
    monkeypatch.setattr(read_ahead.dist, "world_size", lambda: world_size)
    counted, settings = Counted(), dict(seed=0, rank=world_size // 2, world_size=world_size)
    loader = Loader(counted.streamed(), batch_size=world_size * local, **settings)
    batches = loader.batches(3)
    for _ in range(6):
        next(batches)
    batches.close()
    assert counted.alone == []
    assert len(counted.runs) == len(set(counted.runs))


def test_what_is_used_up_is_given_up(monkeypatch):
    monkeypatch.setattr(read_ahead, "SPARE", 20 * 10 * IMAGE)
    images = Counted().streamed()
    loader = Loader(images, batch_size=64, seed=0)
    for _ in itertools.islice(loader.batches(0), 80):  # 5120 images of 512 pieces
        under_way = 5 * 64  # pieces, at most
        assert held(images) <= (LANES * PIECES + under_way + 20) * 10 * IMAGE
    assert images.pieces.spare_bytes <= 20 * 10 * IMAGE


def test_large_pieces_beyond_need_are_given_up(monkeypatch):
    """Of 12 files with one row group each, two are in use at a time."""
    monkeypatch.setattr(read_ahead, "SPARE", 0)
    counted = Counted(12 * 5000, 5000, np.arange(0, 60_001, 5000))
    for order, kept in an_epoch(counted, 500):
        assert order.lanes == (2, 1) and len(kept) <= 4


def test_a_small_set_is_read_once_in_many_epochs():
    counted = Counted(500, 10, np.array([0, 500]))
    loader = Loader(counted.streamed(), batch_size=50, seed=0)
    list(itertools.islice(loader.batches(0), 40))
    assert sorted(counted.runs) == list(range(0, 500, 10)) and counted.alone == []


@pytest.mark.parametrize("piece", [40, 60])
def test_groups_of_any_size_are_read_once_an_epoch(monkeypatch, piece):
    monkeypatch.setattr(read_ahead, "SPARE", 0)
    rows = np.random.default_rng(piece).integers(piece // 2, piece + 1, 1000)
    starts = np.concatenate([[0], rows.cumsum()])
    counted = Counted(int(starts[-1]), piece, starts)
    lanes = {order.lanes for order, _ in an_epoch(counted, 500)}
    assert lanes == {(50, PIECES)} and counted.alone == []
    assert set(counted.runs) <= set(starts.tolist())
    assert len(counted.runs) < len(rows) + 50


def test_pieces_that_memory_cannot_hold_are_refused(monkeypatch):
    monkeypatch.setattr(read_ahead, "free_memory", lambda: 100 * 10 * IMAGE)
    loader = Loader(Counted().streamed(), batch_size=2048, seed=0)
    with pytest.raises(UserError, match=r"pieces are of 10 images\. Write smaller ones"):
        next(loader.batches(0))


def test_where_memory_is_short_only_what_batches_need_stays(monkeypatch):
    counted = Counted()
    images = counted.streamed()
    index = torch.arange(0, 1000, 10)
    for part in index.split(20):
        images.expect(part)
        images.packed(part, lambda n: torch.empty(n, dtype=torch.uint8))
    assert held(images) == 100 * 10 * IMAGE
    images.expect(torch.tensor([5000]))
    monkeypatch.setattr(read_ahead, "free_memory", lambda: 0)
    images.expect(torch.tensor([6000, 7000]))
    images.packed(torch.tensor([6000, 7000]), lambda n: torch.empty(n, dtype=torch.uint8))
    assert {5000, 6000, 7000} <= set(images.pieces.held)
    assert len(images.pieces.held) < 103


def test_what_could_not_be_read_together_comes_alone_and_is_tried_again():
    counted = Counted()
    counted.fail = {20}
    images, room = counted.streamed(), lambda n: torch.empty(n, dtype=torch.uint8)
    for index in (torch.tensor([3, 23]), torch.tensor([4, 24])):
        images.expect(index)
        assert torch.equal(images.packed(index, room)[1], index)
        counted.fail = set()
    assert counted.alone == [23] and counted.runs == [0, 20, 20]
    assert images.skipped == []


def test_a_batch_that_was_never_taken_keeps_its_pieces_only_for_a_while():
    images = Counted().streamed()
    for i in range(40):
        images.expect(torch.tensor([10 * i]))
    busy = [first for first, piece in images.pieces.held.items() if piece.uses]
    assert len(busy) == 16
