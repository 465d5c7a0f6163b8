"""The memory bank: which rows move, and where to."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from selfsight.nn import MemoryBank

NUM, DIM = 20, 6


@settings(max_examples=40, deadline=None)
@given(
    index=st.lists(st.integers(0, NUM - 1), unique=True, min_size=1, max_size=NUM),
    momentum=st.sampled_from([0.0, 0.25, 0.5, 0.9]),
    scale=st.sampled_from([0.1, 1.0, 30.0]),
)
def test_an_update_moves_the_rows_of_the_batch_and_no_other(index, momentum, scale):
    torch.manual_seed(0)
    memory = MemoryBank(NUM, DIM).double()
    before = memory.read()
    v = torch.randn(len(index), DIM, dtype=torch.float64)
    memory.update(torch.tensor(index), scale * v, momentum)
    for i in range(NUM):
        expected = before[i]
        if i in index:
            new = v[index.index(i)] / v[index.index(i)].norm()
            mixed = momentum * before[i] + (1 - momentum) * new
            expected = mixed / mixed.norm()
        torch.testing.assert_close(memory.rows[i], expected)


def test_without_momentum_a_row_is_the_newest_embedding():
    memory, v = MemoryBank(NUM, DIM), torch.randn(3, DIM)
    memory.update(torch.tensor([4, 0, 9]), v, 0.0)
    torch.testing.assert_close(memory.read(torch.tensor([4, 0, 9])), F.normalize(v, dim=1))


def test_rows_start_uniform_within_the_papers_bound_and_not_as_unit_vectors():
    rows = MemoryBank(4000, 128).read()
    bound = 1 / (128 / 3) ** 0.5
    assert rows.abs().max() <= bound
    assert rows.std().item() == pytest.approx(bound / 3**0.5, rel=0.01)  # that of a uniform draw
    assert rows.norm(dim=1).std() > 0.01


def test_what_was_read_stays_as_it_was():
    memory, index = MemoryBank(NUM, DIM), torch.tensor([1, 2])
    whole, some = memory.read(), memory.read(index)
    copies = whole.clone(), some.clone()
    memory.update(index, torch.randn(2, DIM), 0.5)
    assert torch.equal(whole, copies[0]) and torch.equal(some, copies[1])
