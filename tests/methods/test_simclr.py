"""EqCo on SimCLR: which negatives, how many, and the margin."""

import copy

import pytest
import torch

from selfsight.errors import UserError
from selfsight.methods.base import validate_method
from selfsight.methods.simclr import SimCLRConfig
from tests.methods.small import GLOBAL_BATCH as N
from tests.methods.small import make, moment, views


def by_hand(z1, z2, t, kind, draws, alpha):
    """Each of 2N anchors against its partner and K others, weighed alpha / K."""
    z = [row / row.norm() for row in torch.cat([z1, z2])]
    total = 0.0
    for a in range(2 * N):
        partner = (a + N) % (2 * N)
        others = [j for j in range(2 * N) if j not in (a, partner)]
        if kind == "cross":
            others = [j for j in others if (j < N) != (a < N)]
        if draws is not None:
            others = [others[p] for p in draws[a]]
        s = [torch.exp(z[a] @ z[j] / t) for j in others]
        own = torch.exp(z[a] @ z[partner] / t)
        weight = 1.0 if alpha is None else alpha / len(s)
        total = total - torch.log(own / (own + weight * sum(s)))
    return total / (2 * N)


@pytest.mark.parametrize("kind", ["both", "cross"])
@pytest.mark.parametrize("count", [None, 1, 3])
@pytest.mark.parametrize("alpha", [None, 64.0])
def test_the_loss_is_eqco_over_k_negatives_of_each_query(kind, count, alpha):
    method = make("simclr", negatives=kind, num_negatives=count, alpha=alpha).double()
    x1, x2 = views(method, dtype=torch.float64)
    again, at = copy.deepcopy(method), moment()
    (_, z1), (_, z2) = again.student(x1), again.student(x2)
    most = method.config.available_negatives(N)
    draws = None
    if count is not None:
        draws = torch.cat(
            [at.choices(f"negatives {v}", at.index, count, among=most) for v in (1, 2)]
        )
        assert len(draws.unique(dim=0)) > 1  # each query has a draw of its own
    expected = by_hand(z1, z2, 0.1, kind, draws, alpha)
    torch.testing.assert_close(method([x1, x2], at).loss, expected, rtol=1e-10, atol=0)


@pytest.mark.parametrize(("kind", "most"), [("both", 2 * N - 2), ("cross", N - 1)])
@pytest.mark.parametrize("count", [None, 3])
def test_alpha_equal_to_the_negatives_used_changes_no_bit(kind, most, count):
    used = float(count or most)
    plain, eqco = (
        make("simclr", negatives=kind, num_negatives=count, alpha=a) for a in (None, used)
    )
    x = views(plain)
    assert torch.equal(plain(x, moment()).loss, eqco(x, moment()).loss)
    assert plain.config.chance_loss(N) == eqco.config.chance_loss(N)


@pytest.mark.parametrize("kind", ["both", "cross"])
@pytest.mark.parametrize("count", [None, 3])
@pytest.mark.parametrize("alpha", [None, 64.0])
def test_equal_embeddings_lose_at_chance(kind, count, alpha):
    method = make("simclr", negatives=kind, num_negatives=count, alpha=alpha)
    for p in method.parameters():
        p.data.zero_()
    loss = method(views(method), moment()).loss.item()
    assert loss == pytest.approx(method.config.chance_loss(N))


@pytest.mark.parametrize(("kind", "most"), [("both", 14), ("cross", 7)])
def test_no_more_negatives_than_there_are(kind, most):
    validate_method(
        SimCLRConfig(negatives=kind, num_negatives=most), batch_size=8, view_sizes=(16,) * 2
    )
    with pytest.raises(UserError, match=f"a batch of 8 has {most} for each query"):
        validate_method(
            SimCLRConfig(negatives=kind, num_negatives=most + 1), batch_size=8, view_sizes=(16,) * 2
        )


@pytest.mark.parametrize("settings", [dict(alpha=0.0), dict(num_negatives=0)])
def test_alpha_and_negatives_must_be_positive(settings):
    with pytest.raises(UserError, match=r"must be (above 0|1 or more)"):
        validate_method(SimCLRConfig(**settings), batch_size=8, view_sizes=(16,) * 2)
