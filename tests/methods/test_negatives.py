"""The positive is never among the negatives: for any batch, any draw, any method that draws."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from selfsight.losses import info_nce, nt_xent
from selfsight.methods import Moment

moments = st.builds(
    lambda seed, step, n: Moment(
        step=torch.tensor(step),
        index=torch.arange(n) * 7 + seed,
        seed=seed,
        total_steps=10,
        steps_per_epoch=5,
    ),
    st.integers(0, 1000),
    st.integers(0, 1000),
    st.integers(2, 12),
)


@settings(max_examples=40, deadline=None)
@given(at=moments, data=st.data())
def test_choices_are_different_things_within_range(at, data):
    among = data.draw(st.integers(1, 30))
    count = data.draw(st.integers(1, among))
    chosen = at.choices("test", at.index, count, among=among)
    assert chosen.shape == (len(at.index), count)
    assert chosen.min() >= 0 and chosen.max() < among
    assert all(len(set(row.tolist())) == count for row in chosen)


@settings(max_examples=40, deadline=None)
@given(at=moments, shared=st.booleans(), data=st.data())
def test_a_query_that_equals_its_key_alone_never_meets_it_again(at, shared, data):
    """The loss would be log 2 or more if its key were also a negative; it is 0."""
    n = len(at.index)
    count = data.draw(st.integers(1, n - 1))
    chosen = (
        at.permutation("a", n - 1, at.index.device)[:count]
        if shared
        else at.choices("a", at.index, count, among=n - 1)
    )
    rows = torch.eye(n)
    assert info_nce(rows, rows, temperature=1e-3, negatives=chosen).item() < 1e-6


@pytest.mark.parametrize("cross", [True, False])
@settings(max_examples=30, deadline=None)
@given(at=moments, data=st.data())
def test_an_anchor_never_meets_its_partner_or_itself(cross, at, data):
    n = len(at.index)
    most = n - 1 if cross else 2 * n - 2
    count = data.draw(st.integers(1, most))
    chosen = torch.cat([at.choices(name, at.index, count, among=most) for name in ("a", "b")])
    rows = torch.eye(n)
    loss = nt_xent(rows, rows, temperature=1e-3, negatives=chosen, cross=cross)
    assert loss.item() < 1e-6
