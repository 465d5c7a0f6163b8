"""SiMo against its loss, written with loops, and its special rules."""

import copy
import math

import pytest
import torch
from torch import nn

from selfsight.catalog import build_recipe
from selfsight.errors import UserError
from selfsight.methods.base import validate_method
from selfsight.methods.simo import SiMoConfig
from tests.methods.small import GLOBAL_BATCH as N
from tests.methods.small import make, moment, views


def unit_rows(rows):
    return [row / row.norm() for row in rows]


def by_hand(q, k, chosen, t, alpha):
    """-log s0 / (s0 + alpha / K sum s), K negatives among the other keys of the batch."""
    q, k, total = unit_rows(q), unit_rows(k), 0.0
    for i in range(len(q)):
        others = [j for j in range(len(k)) if j != i]
        positions = range(len(others)) if chosen is None else chosen.expand(len(q), -1)[i]
        s = [torch.exp(q[i] @ k[others[p]] / t) for p in positions]
        own = torch.exp(q[i] @ k[i] / t)
        weight = 1.0 if alpha is None else alpha / len(s)
        total = total - torch.log(own / (own + weight * sum(s)))
    return total / len(q)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("count", "alpha"), [(3, 256.0), (3, None), (256, 64.0)])
def test_the_loss_is_eqco_over_k_keys_of_the_batch(shared, count, alpha):
    settings = dict(num_negatives=count, alpha=alpha, shared_negatives=shared)
    method = make("simo", **settings).double()
    x1, x2 = views(method, dtype=torch.float64)
    again = copy.deepcopy(method)
    (_, q), (_, k) = again.student(x1), again.teacher(x2)
    chosen = method.sample_negatives(moment(), "negatives", torch.empty(N))
    assert chosen is None if count >= N - 1 else chosen.shape[-1] == count
    loss = method([x1, x2], moment()).loss
    torch.testing.assert_close(loss, by_hand(q, k, chosen, 0.2, alpha), rtol=1e-10, atol=0)


def test_negatives_of_a_query_are_different_keys_and_new_at_each_step():
    shared, own = make("simo"), make("simo", shared_negatives=False)
    assert shared.sample_negatives(moment(), "negatives", torch.empty(N)).shape == (4,)
    rows = own.sample_negatives(moment(), "negatives", torch.empty(N))
    assert rows.shape == (N, 4) and len(rows.unique(dim=0)) > 1
    assert all(len(set(row.tolist())) == 4 for row in rows)
    assert not torch.equal(rows, own.sample_negatives(moment(5), "negatives", torch.empty(N)))


@pytest.mark.parametrize("count", [3, 256])
def test_alpha_equal_to_the_negatives_used_is_plain_infonce_to_the_last_bit(count):
    used = float(min(count, N - 1))
    plain, eqco = (make("simo", num_negatives=count, alpha=a) for a in (None, used))
    x = views(plain)
    assert torch.equal(plain(x, moment()).loss, eqco(x, moment()).loss)


def test_chance_is_a_guess_among_alpha_or_the_negatives_that_there_are():
    def chance(**settings):
        return math.exp(SiMoConfig(**settings).chance_loss(batch_size=8))

    assert chance(num_negatives=3, alpha=None) == pytest.approx(1 + 3)
    assert chance(num_negatives=256, alpha=None) == pytest.approx(8)  # the batch has seven
    assert chance(num_negatives=3, alpha=64.0) == pytest.approx(1 + 64)


def test_symmetric_is_the_mean_of_both_ways():
    settings = dict(num_negatives=256)  # all, so that no draw is in the way
    one, back, both = (
        make("simo", **settings).double(),
        make("simo", **settings).double(),
        make("simo", symmetric=True, **settings).double(),
    )
    x1, x2 = views(one, dtype=torch.float64)
    ways = one([x1, x2], moment()).loss + back([x2, x1], moment()).loss
    torch.testing.assert_close(both([x1, x2], moment()).loss, ways / 2)


def test_each_linear_layer_has_small_weights_and_a_learned_norm_after_it():
    head = make("simo").student.projector
    kinds = [type(layer).__name__ for layer in head]
    assert kinds == ["Linear", "BatchNorm", "ReLU", "Linear", "BatchNorm"]
    weights = torch.cat([m.weight.flatten() for m in head if isinstance(m, nn.Linear)])
    assert weights.std().item() == pytest.approx(0.01, rel=0.2)
    assert all(m.bias is None for m in head if isinstance(m, nn.Linear))
    assert head[-1].weight is not None and head[-1].bias is not None


def test_the_rate_is_warm_up_times_a_cosine_that_starts_with_the_run():
    schedule = build_recipe("simo.imagenet_r50_200ep").optim.schedule
    for epoch in (0, 5, 10, 100, 199):
        rise = 0.001 + 0.999 * min(epoch / 10, 1)
        expected = 0.03 * rise * (1 + math.cos(math.pi * epoch / 200)) / 2
        assert schedule.lr(epoch, 200, 0.03) == pytest.approx(expected)


@pytest.mark.parametrize("alpha", [0.0, -1.0, math.nan])
def test_alpha_must_be_positive(alpha):
    with pytest.raises(UserError, match=r"method.alpha is .*; it must be above 0"):
        validate_method(SiMoConfig(alpha=alpha), batch_size=8, view_sizes=(16,) * 2)


def test_a_query_needs_a_negative():
    with pytest.raises(UserError, match=r"method.num_negatives is 0; it must be 1 or more"):
        validate_method(SiMoConfig(num_negatives=0), batch_size=8, view_sizes=(16,) * 2)
