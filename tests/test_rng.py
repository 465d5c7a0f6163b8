"""Numbers depend on what they are for, never on when or where they are drawn."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from selfsight import rng

KEY = rng.key(0, "test")


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        (0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (0xFFFFFFFF, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ],
)
def test_philox_meets_the_published_vectors(word, expected):
    """Known answers of the authors' Random123 library for philox4x32-10."""
    counter = torch.full((1,), word)
    words = rng.philox((word, word), (counter,) * 4)
    assert tuple(int(w) for w in words) == expected


def test_any_batch_split_gives_the_same_numbers():
    index = torch.tensor([5, 3, 2**40 + 1, 0, 77])
    whole = rng.normal(KEY, index, 7, at=3)
    parts = torch.cat([rng.normal(KEY, part, 7, at=3) for part in index.split(2)])
    assert torch.equal(whole, parts)


def test_a_step_as_a_tensor_is_the_step_as_a_number():
    index = torch.arange(4)
    assert torch.equal(
        rng.uniform(KEY, index, 5, at=torch.tensor(9)), rng.uniform(KEY, index, 5, at=9)
    )


def test_seed_purpose_step_index_and_column_all_matter():
    index = torch.arange(3)
    draws = [
        rng.uniform(rng.key(seed, word), index, 4, at)
        for seed in (0, 1)
        for word in ("a", "b")
        for at in (0, 1)
    ]
    assert torch.stack(draws).unique().numel() == 8 * 3 * 4


def test_uniform_and_normal_have_their_moments():
    index = torch.arange(50_000)
    u, z = rng.uniform(KEY, index, 2), rng.normal(KEY, index, 2)
    assert u.min() >= 0 and u.max() < 1
    torch.testing.assert_close(u.mean(0), torch.full((2,), 0.5).double(), atol=0.01, rtol=0)
    torch.testing.assert_close(u.var(0), torch.full((2,), 1 / 12).double(), atol=0.005, rtol=0)
    torch.testing.assert_close(z.mean(0), torch.zeros(2).double(), atol=0.02, rtol=0)
    torch.testing.assert_close(z.var(0), torch.ones(2).double(), atol=0.02, rtol=0)
    assert torch.corrcoef(z.T)[0, 1].abs() < 0.02


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 3000), st.integers(0, 5))
def test_shuffled_is_a_permutation_of_any_length(n, epoch):
    order = rng.shuffled(KEY, n, torch.arange(n), at=epoch)
    assert torch.equal(order.sort().values, torch.arange(n))


def test_shuffled_leaves_no_trace_of_the_old_order():
    n = 4096
    order = rng.shuffled(KEY, n, torch.arange(n)).double()
    assert torch.corrcoef(torch.stack([order, torch.arange(n).double()]))[0, 1].abs() < 0.05
    steps = (order[1:] - order[:-1]).abs()
    assert steps.mean().item() == pytest.approx(n / 3, rel=0.05)  # that of independent draws


def test_permutation_is_uniform_over_the_orders_of_three():
    orders = [tuple(rng.permutation(KEY, 3, at).tolist()) for at in range(600)]
    counts = [orders.count(order) for order in set(orders)]
    assert len(counts) == 6 and min(counts) > 75


@pytest.mark.gpu
def test_cpu_and_gpu_draw_the_same_bits():
    index = torch.arange(1000) * 7919
    there = rng.bits(KEY, index.cuda(), 13, at=5).cpu()
    assert torch.equal(rng.bits(KEY, index, 13, at=5), there)
