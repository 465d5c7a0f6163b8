import hashlib
import tracemalloc

import numpy as np
import pytest
import torch

from selfsight.data import Loader
from selfsight.data.image_order import MAX_LANES, MAX_WINDOW, WINDOW_CHUNKS, Order, Shards
from selfsight.data.sources.source import LazyNames, Source
from selfsight.data.stream import StreamedImages
from tests.data.image_files import read_padded

SETS = {  # count, batch, chunk size, first image of each shard
    "one shard": (1000, 20, 8, [0, 1000]),
    "shards of any length": (5003, 24, 16, [0, 777, 778, 2000, 2000, 5003]),
    "many windows": (70_000, 64, 32, [0, 1000, 69_999, 70_000]),
    "odd batch": (3000, 7, 4, [0, 1500, 3000]),
    "less than a piece": (100, 8, 64, [0, 30, 100]),
}
UNEVEN = {  # count, batch, largest chunk, first image of each chunk
    "last group smaller": (1990, 10, 8, [k * 199 + i for k in range(10) for i in range(0, 199, 8)]),
    "groups of any size": (
        40_000,
        100,
        60,
        np.r_[0, np.sort(np.random.default_rng(0).permutation(39_999)[:1999]) + 1],
    ),
    "more batches than images": (50, 64, 30, [0, 20, 20]),
}
for key, (count, batch, _, starts) in UNEVEN.items():
    starts = np.array([*starts, count])
    UNEVEN[key] = (count, batch, int(np.diff(starts).max()), starts)


def order(name, seed=0):
    count, batch, chunk_size, starts = (SETS | UNEVEN)[name]
    shards = Shards(np.array(starts), chunk_size)
    assert shards.uneven == (name in UNEVEN)
    return Order(count=count, batch_size=batch, seed=seed, shards=shards)


@pytest.mark.parametrize("name", SETS | UNEVEN)
def test_an_epoch_is_a_permutation(name):
    made = order(name)
    for epoch in (0, 3):
        seen = made.images(epoch, torch.arange(made.count))
        assert torch.equal(seen.sort().values, torch.arange(made.count))


@pytest.mark.parametrize("name", SETS)
def test_full_chunks_of_all_shards_come_before_the_remainders(name):
    count, _, chunk_size, starts = SETS[name]
    shards = Shards(np.array(starts), chunk_size)
    numbered = shards.images(torch.arange(count)).tolist()
    whole = sum(n // chunk_size for n in np.diff(starts)) * chunk_size
    for first in range(0, whole, chunk_size):
        assert shards.chunk_of(numbered[first]) == (numbered[first], numbered[first] + chunk_size)
        expected = range(*shards.chunk_of(numbered[first]))
        assert numbered[first : first + chunk_size] == list(expected)
    assert numbered[whole:] == sorted(numbered[whole:])


@pytest.mark.parametrize("name", ["many windows", "groups of any size"])
def test_the_image_depends_on_the_position_alone(name):
    made = order(name)
    some = torch.tensor([39_999, 5, 31_415, 64, 5])
    expected = made.images(2, torch.arange(made.count))[some]
    assert torch.equal(made.images(2, some), expected)


@pytest.mark.parametrize("name", ["single files", "many windows", "groups of any size"])
def test_seeds_and_epochs_differ_and_no_epoch_depends_on_those_before(name):
    def build(seed=0):
        if name == "single files":
            return Order(count=1000, batch_size=20, seed=seed)
        return order(name, seed)

    made, position = build(), torch.arange(256)
    first, second = (made.images(epoch, position) for epoch in (0, 1))
    assert not torch.equal(first, second)
    assert torch.equal(second, build().images(1, position))
    assert torch.equal(first, made.images(0, position))
    assert not torch.equal(first, build(seed=1).images(0, position))


@pytest.mark.parametrize(
    ("count", "batch", "chunk_size", "digest"),
    [
        (1000, 16, 8, "9b27db8f9767eff3"),
        (40_050, 256, 1000, "62577eca6f18f1cb"),
        (40_000, 128, 5000, "a8771199554e792b"),
    ],
)
def test_the_order_of_equal_chunks_is_as_recorded(count, batch, chunk_size, digest):
    """However they are told: a file that is cut, or the row groups of it."""
    cut = np.append(np.arange(0, count, chunk_size), count)
    for starts in (np.array([0, count]), cut):
        made = Order(count=count, batch_size=batch, seed=1, shards=Shards(starts, chunk_size))
        images = made.images(2, torch.arange(count)).numpy()
        assert hashlib.blake2b(images.tobytes(), digest_size=8).hexdigest() == digest


def test_a_row_group_of_any_size_is_used_up_in_a_window():
    made = order("groups of any size")
    lanes, chunks = made.lanes
    steps = made.images(0, torch.arange(made.count)).view(-1, made.batch_size)
    chunk = torch.searchsorted(torch.from_numpy(made.shards.starts), steps, right=True)
    step = torch.arange(len(steps))[:, None].expand_as(steps).flatten()
    number = len(made.shards.starts)
    first = torch.full((number,), len(steps)).scatter_reduce(0, chunk.flatten(), step, "amin")
    last = torch.full((number,), -1).scatter_reduce(0, chunk.flatten(), step, "amax")
    longest = -(-chunks * made.shards.chunk_size // (made.batch_size // lanes))
    cut_in_two = (last - first > longest).sum()
    assert cut_in_two < lanes and (last >= first).sum() == number - 1
    assert np.mean([len(row.unique()) for row in chunk]) > 0.75 * made.batch_size


@pytest.mark.parametrize("name", ["odd batch", "groups of any size"])
def test_several_processes_share_the_order_of_one(name):
    count, batch, chunk_size, starts = (SETS | UNEVEN)[name]
    gray = np.zeros((1, 1, 3), np.uint8)
    source = Source(
        "x",
        LazyNames(count, str),
        None,
        (),
        lambda i: gray,
        shard_starts=np.array(starts),
        chunk_size=chunk_size,
        read_range=lambda first, behind: [gray] * (behind - first),
    )
    images = StreamedImages(source, store_size=1, channels=3, workers=1)
    one = Loader(images, batch_size=batch, seed=5)
    for world_size in (n for n in (5, 7) if batch % n == 0):
        parts = [
            Loader(images, batch_size=batch, seed=5, rank=r, world_size=world_size)
            for r in range(world_size)
        ]
        for step in (0, 33, 401):
            together = torch.cat([part.indices(step)[1] for part in parts])
            assert torch.equal(together, one.indices(step)[1])


@pytest.mark.parametrize(
    ("batch", "lanes"),
    [(16, 16), (64, 64), (192, 64), (4096, 64), (100, 50), (250, 50), (255, 51), (7, 7), (127, 1)],
)
def test_the_number_of_lanes_is_the_largest_divisor_of_the_batch_size(batch, lanes):
    made = Order(count=10**6, batch_size=batch, seed=0, shards=Shards(np.array([0, 10**6]), 40))
    assert made.lanes == (lanes, WINDOW_CHUNKS)


def test_with_large_chunks_the_lanes_still_divide_the_batch():
    for batch in (100, 250, 256):
        for chunk_size in (200, 1000, 5000, MAX_WINDOW):
            shards = Shards(np.array([0, 10**6]), chunk_size)
            lanes, _ = Order(count=10**6, batch_size=batch, seed=0, shards=shards).lanes
            assert batch % lanes == 0


def test_a_step_reads_few_new_chunks_and_each_is_used_up_in_a_window():
    count, batch, chunk_size = 10**8, 256, 32
    shards = Shards(np.array([0, count]), chunk_size)
    made = Order(count=count, batch_size=batch, seed=0, shards=shards)
    index = made.images(0, torch.arange(512 * batch)).view(512, batch) // chunk_size
    seen: set[int] = set()
    new = []
    for row in index.tolist():
        new.append(len(set(row) - seen))
        seen |= set(row)
    assert max(new[100:]) <= 3 * batch // chunk_size
    first, last = {}, {}
    for step, row in enumerate(index.tolist()):
        for one in row:
            first.setdefault(one, step)
            last[one] = step
    assert (
        max(last[one] - first[one] for one in first)
        <= WINDOW_CHUNKS * chunk_size * MAX_LANES // batch
    )


def test_a_batch_mixes_many_chunks():
    made = order("many windows")
    assert len((made.images(0, torch.arange(64)) // 32).unique()) > 50


@pytest.mark.parametrize("world_size", [2, 8])
def test_processes_read_disjoint_chunks(world_size):
    count, batch = 65_536, 64
    made = Order(count=count, batch_size=batch, seed=0, shards=Shards(np.array([0, count]), 32))
    index = made.images(0, torch.arange(count)).view(-1, world_size, batch // world_size)
    chunks = [set((index[:, r] // 32).flatten().tolist()) for r in range(world_size)]
    assert sum(map(len, chunks)) == len(set().union(*chunks))


def test_windows_stay_within_their_limit():
    for chunk_size in (2, 100, 1000, MAX_WINDOW):
        made = Order(count=10, batch_size=256, seed=0, shards=Shards(np.array([0, 10]), chunk_size))
        lanes, chunks = made.lanes
        assert lanes * chunks * chunk_size <= MAX_WINDOW


def test_the_order_of_a_billion_images_needs_no_memory():
    count = 10**9
    gray = np.full((2, 2, 3), 7, np.uint8)
    source = Source(
        name="huge",
        names=LazyNames(count, str),
        labels=None,
        class_names=(),
        read=lambda i: gray + i % 100,
        shard_starts=np.arange(0, count + 1, 10**6),
        chunk_size=50,
        read_range=lambda first, behind: [gray + i % 100 for i in range(first, behind)],
    )
    tracemalloc.start()
    images = StreamedImages(source, store_size=2, channels=3, workers=1)
    made = Order(count=count, batch_size=64, seed=0, shards=images.shards)
    last = count // 64 - 1
    for step in (0, 1, last):
        index = made.images(0, torch.arange(64) + step * 64)
        if step:  # as the loader does; else as a sample
            images.prefetch(index)
        batch = read_padded(images, index)[0]
        assert torch.equal(batch[:, 0, 0, 0].long(), 7 + index % 100)
    assert images.names[count - 1] == str(count - 1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 * 2**20
