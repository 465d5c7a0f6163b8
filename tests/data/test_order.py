import tracemalloc

import numpy as np
import pytest
import torch

from sightline.data.order import LANES, PIECES, WINDOW, Order, Shards
from sightline.data.source import Computed, Source
from sightline.data.stream import Streamed

SETS = {  # count, batch, piece, where shards begin
    "one shard": (1000, 20, 8, [0, 1000]),
    "shards of any length": (5003, 24, 16, [0, 777, 778, 2000, 2000, 5003]),
    "many windows": (70_000, 64, 32, [0, 1000, 69_999, 70_000]),
    "odd batch": (3000, 7, 4, [0, 1500, 3000]),
    "less than a piece": (100, 8, 64, [0, 30, 100]),
}


def order(name, seed=0):
    count, batch, piece, starts = SETS[name]
    shards = Shards(np.array(starts), piece)
    return Order(count=count, batch_size=batch, seed=seed, shards=shards)


@pytest.mark.parametrize("name", SETS)
def test_an_epoch_is_a_permutation(name):
    made = order(name)
    for epoch in (0, 3):
        seen = made.pictures(epoch, torch.arange(made.count))
        assert torch.equal(seen.sort().values, torch.arange(made.count))


@pytest.mark.parametrize("name", SETS)
def test_whole_pieces_of_all_shards_come_before_what_is_left_of_them(name):
    count, _, piece, starts = SETS[name]
    shards = Shards(np.array(starts), piece)
    numbered = shards.pictures(torch.arange(count)).tolist()
    whole = sum(n // piece for n in np.diff(starts)) * piece
    for first in range(0, whole, piece):
        assert shards.run(numbered[first]) == (numbered[first], numbered[first] + piece)
        assert numbered[first : first + piece] == list(range(*shards.run(numbered[first])))
    assert numbered[whole:] == sorted(numbered[whole:])


def test_a_position_alone_decides():
    made = order("many windows")
    some = torch.tensor([69_999, 5, 31_415, 64, 5])
    expected = made.pictures(2, torch.arange(made.count))[some]
    assert torch.equal(made.pictures(2, some), expected)


def test_seeds_and_epochs_differ():
    first = order("many windows").pictures(0, torch.arange(256))
    assert not torch.equal(first, order("many windows").pictures(1, torch.arange(256)))
    assert not torch.equal(first, order("many windows", seed=1).pictures(0, torch.arange(256)))


def test_steps_read_few_new_pieces_and_each_is_used_up_in_a_window():
    count, batch, piece = 10**8, 256, 32
    made = Order(count=count, batch_size=batch, seed=0, shards=Shards(np.array([0, count]), piece))
    index = made.pictures(0, torch.arange(512 * batch)).view(512, batch) // piece
    seen: set[int] = set()
    new = []
    for row in index.tolist():
        new.append(len(set(row) - seen))
        seen |= set(row)
    assert max(new[100:]) <= 3 * batch // piece  # on average a batch holds batch // piece pieces
    first, last = {}, {}
    for step, row in enumerate(index.tolist()):
        for one in row:
            first.setdefault(one, step)
            last[one] = step
    assert max(last[one] - first[one] for one in first) <= PIECES * piece * LANES // batch


def test_a_batch_is_made_of_many_pieces():
    made = order("many windows")
    assert len((made.pictures(0, torch.arange(64)) // 32).unique()) > 50


@pytest.mark.parametrize("world_size", [2, 8])
def test_processes_read_disjoint_pieces(world_size):
    count, batch = 65_536, 64
    made = Order(count=count, batch_size=batch, seed=0, shards=Shards(np.array([0, count]), 32))
    index = made.pictures(0, torch.arange(count)).view(-1, world_size, batch // world_size)
    pieces = [set((index[:, r] // 32).flatten().tolist()) for r in range(world_size)]
    assert sum(map(len, pieces)) == len(set().union(*pieces))


def test_windows_stay_within_their_bound():
    for piece in (2, 100, 1000, WINDOW):
        made = Order(count=10, batch_size=256, seed=0, shards=Shards(np.array([0, 10]), piece))
        lanes, pieces = made.lanes
        assert lanes * pieces * piece <= WINDOW


def test_a_billion_pictures_cost_no_memory():
    count = 10**9
    grey = np.full((2, 2, 3), 7, np.uint8)
    source = Source(
        name="huge",
        names=Computed(count, str),
        labels=None,
        class_names=(),
        read=lambda i: grey + i % 100,
        shards=np.arange(0, count + 1, 10**6),
        group=50,
        read_run=lambda first, behind: [grey + i % 100 for i in range(first, behind)],
    )
    tracemalloc.start()
    pictures = Streamed(source, store_size=2, channels=3, workers=1)
    made = Order(count=count, batch_size=64, seed=0, shards=pictures.shards)
    last = count // 64 - 1
    for step in (0, 1, last // 2, last):
        index = made.pictures(0, torch.arange(64) + step * 64)
        if step:  # as the loader does; else as a sample
            pictures.expect(index)
        batch = pictures.batch(index)[0]
        assert torch.equal(batch[:, 0, 0, 0].long(), 7 + index % 100)
    assert pictures.names[count - 1] == str(count - 1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 * 2**20
