"""The queue is first in, first out, whatever it is fed."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from selfsight.nn import Queue

SIZE = 12


def keys(start, count):
    """Rows that say when they came."""
    return torch.arange(start, start + count, dtype=torch.float32)[:, None].expand(-1, 3)


@settings(max_examples=40, deadline=None)
@given(pushes=st.lists(st.integers(1, SIZE), min_size=1, max_size=12))
def test_it_holds_the_newest_keys_each_once_and_overwrites_the_oldest(pushes):
    queue, came = Queue(SIZE, 3), 0
    for count in pushes:
        queue.push(keys(came, count))
        came += count
        newest = set(range(max(0, came - SIZE), came))
        held = queue.read()[:, 0]
        assert newest <= set(held.tolist())
        # The head stands where the next key goes: at the oldest, once the queue is full.
        assert int(queue.head) == came % SIZE
        if came >= SIZE:
            assert sorted(held.tolist()) == sorted(newest)
            assert held[queue.head] == min(newest)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), count=st.integers(1, SIZE))
def test_chosen_keys_alone_are_taken_in(seed, count):
    chosen = torch.randperm(2 * SIZE, generator=torch.Generator().manual_seed(seed))[:count]
    queue = Queue(count, 3)
    queue.push(keys(0, 2 * SIZE), rows=chosen)
    assert queue.read()[:, 0].tolist() == chosen.tolist()


def test_what_was_read_stays_as_it_was():
    queue = Queue(SIZE, 3)
    before = queue.read()
    copied = before.clone()
    queue.push(keys(0, 5))
    assert torch.equal(before, copied)


def test_it_starts_with_unit_rows():
    torch.testing.assert_close(Queue(SIZE, 3).read().norm(dim=1), torch.ones(SIZE))
