import itertools
from collections import deque

import numpy as np
import pytest
import torch

from sightline.data import Loader, pieces
from sightline.data.order import LANES, PIECES, Order
from sightline.data.source import Computed, Source
from sightline.data.stream import Streamed
from sightline.errors import UserError

GREY = np.zeros((2, 2, 3), np.uint8)
PICTURE = pieces.OBJECT + GREY.nbytes


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
        return GREY

    def read_run(self, first, behind):
        self.runs.append(first)
        if first in self.fail:
            raise OSError("not now")
        return [GREY] * (behind - first)

    def streamed(self):
        return Streamed(self.source, store_size=2, channels=3, workers=1)


def held(pictures):
    kept = pictures.pieces
    return sum(piece.bytes for piece in kept.held.values())


def an_epoch(counted, batch):
    """Its steps as a loader takes them, five under way, without decoding; what is held at each."""
    pictures, under_way = counted.streamed(), deque()
    order = Order(count=len(pictures), batch_size=batch, seed=0, shards=pictures.shards)
    for part in order.pictures(0, torch.arange(len(pictures) // batch * batch)).split(batch):
        under_way.append((part.tolist(), pictures.pieces.need(part.tolist())))
        if len(under_way) > 5:
            index, needed = under_way.popleft()
            for i in index:
                pictures.pieces.read(i)
            pictures.pieces.release(needed)
            yield order, set(pictures.pieces.held)


@pytest.mark.parametrize(("world_size", "local"), [(1, 1024), (8, 256), (1000, 32)])
def test_a_piece_that_is_needed_is_neither_given_up_nor_read_twice(monkeypatch, world_size, local):
    monkeypatch.setattr(pieces, "SPARE", 0)
    monkeypatch.setattr(pieces.dist, "world_size", lambda: world_size)
    counted, settings = Counted(), dict(seed=0, rank=world_size // 2, world_size=world_size)
    loader = Loader(counted.streamed(), batch_size=world_size * local, **settings)
    batches = loader.batches(3)
    for _ in range(6):
        next(batches)
    batches.close()
    assert counted.alone == []
    assert len(counted.runs) == len(set(counted.runs))


def test_what_is_used_up_is_given_up(monkeypatch):
    monkeypatch.setattr(pieces, "SPARE", 20 * 10 * PICTURE)
    pictures = Counted().streamed()
    loader = Loader(pictures, batch_size=64, seed=0)
    for _ in itertools.islice(loader.batches(0), 80):  # 5120 pictures of 512 pieces
        under_way = 5 * 64  # pieces, at most
        assert held(pictures) <= (LANES * PIECES + under_way + 20) * 10 * PICTURE
    assert pictures.pieces.spare_bytes <= 20 * 10 * PICTURE


def test_large_pieces_beyond_need_are_given_up(monkeypatch):
    """Of 12 files with one row group each, two are in use at a time."""
    monkeypatch.setattr(pieces, "SPARE", 0)
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
    monkeypatch.setattr(pieces, "SPARE", 0)
    rows = np.random.default_rng(piece).integers(piece // 2, piece + 1, 1000)
    starts = np.concatenate([[0], rows.cumsum()])
    counted = Counted(int(starts[-1]), piece, starts)
    lanes = {order.lanes for order, _ in an_epoch(counted, 500)}
    assert lanes == {(50, PIECES)} and counted.alone == []
    assert set(counted.runs) <= set(starts.tolist())
    assert len(counted.runs) < len(rows) + 50


def test_pieces_that_memory_cannot_hold_are_refused(monkeypatch):
    monkeypatch.setattr(pieces, "free_memory", lambda: 100 * 10 * PICTURE)
    loader = Loader(Counted().streamed(), batch_size=2048, seed=0)
    with pytest.raises(UserError, match=r"pieces are of 10 pictures\. Write smaller ones"):
        next(loader.batches(0))


def test_where_memory_is_short_only_what_batches_need_stays(monkeypatch):
    counted = Counted()
    pictures = counted.streamed()
    index = torch.arange(0, 1000, 10)
    for part in index.split(20):
        pictures.expect(part)
        pictures.packed(part, lambda n: torch.empty(n, dtype=torch.uint8))
    assert held(pictures) == 100 * 10 * PICTURE
    pictures.expect(torch.tensor([5000]))
    monkeypatch.setattr(pieces, "free_memory", lambda: 0)
    pictures.expect(torch.tensor([6000, 7000]))
    pictures.packed(torch.tensor([6000, 7000]), lambda n: torch.empty(n, dtype=torch.uint8))
    assert {5000, 6000, 7000} <= set(pictures.pieces.held)
    assert len(pictures.pieces.held) < 103


def test_what_could_not_be_read_together_comes_alone_and_is_tried_again():
    counted = Counted()
    counted.fail = {20}
    pictures, room = counted.streamed(), lambda n: torch.empty(n, dtype=torch.uint8)
    for index in (torch.tensor([3, 23]), torch.tensor([4, 24])):
        pictures.expect(index)
        assert torch.equal(pictures.packed(index, room)[1], index)
        counted.fail = set()
    assert counted.alone == [23] and counted.runs == [0, 20, 20]
    assert pictures.skipped == []


def test_a_batch_that_was_never_taken_keeps_its_pieces_only_for_a_while():
    pictures = Counted().streamed()
    for i in range(40):
        pictures.expect(torch.tensor([10 * i]))
    busy = [first for first, piece in pictures.pieces.held.items() if piece.uses]
    assert len(busy) == 16
