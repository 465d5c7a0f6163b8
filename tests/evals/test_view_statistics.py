"""JCL's figure 3 and EqCo's figures 1 and 4, from their equations."""

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from selfsight.evals import feature_statistics
from selfsight.evals.view_statistics import (
    histogram,
    information_bound,
    query_gradients,
    similarity_and_variance,
)


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("n", "m", "d"), [(5, 2, 3), (7, 9, 16), (1, 32, 128)])
def test_similarity_and_d_times_variance_sum_to_one(n, m, d):
    similarity, variance = similarity_and_variance(random(n, m, d) + 1)
    torch.testing.assert_close(similarity + d * variance, torch.ones(n, dtype=torch.float64))


def test_similarity_is_the_mean_over_all_pairs_and_variance_that_of_the_covariance():
    views = random(3, 4, 5)
    similarity, variance = similarity_and_variance(views)
    for i, z in enumerate(F.normalize(views, dim=2)):
        assert similarity[i].item() == pytest.approx((z @ z.T).mean().item())
        assert variance[i].item() == pytest.approx(
            torch.cov(z.T, correction=0).diagonal().mean().item()
        )


def test_views_that_are_one_point_have_similarity_one():
    similarity, variance = similarity_and_variance(torch.ones(2, 6, 4))
    assert similarity.tolist() == pytest.approx([1, 1])
    assert variance.tolist() == pytest.approx([0, 0])


def by_autograd(q, keys, i, num_negatives, temperature, alpha):
    """Equation 1 with the margin of equation 5, and its gradient."""
    n = len(q)
    q = F.normalize(q, dim=1)[i].clone().requires_grad_()
    keys = F.normalize(keys, dim=1)
    negatives = [keys[(i + j) % n] for j in range(1, num_negatives + 1)]
    margin = temperature * math.log(alpha / num_negatives)
    s0 = ((q @ keys[i] - margin) / temperature).exp()
    loss = -(s0 / (s0 + sum((q @ k / temperature).exp() for k in negatives))).log()
    loss.backward()
    return q.grad.norm().item(), loss.item()


@pytest.mark.parametrize("alpha", [None, 65536.0])
@pytest.mark.parametrize("num_negatives", [1, 4, 9])
def test_gradients_are_those_of_equation_1(num_negatives, alpha):
    q, keys = random(10, 6), random(10, 6, seed=1)
    found = query_gradients(q, keys, num_negatives=num_negatives, temperature=0.2, alpha=alpha)
    for i in range(10):
        norm, loss = by_autograd(q, keys, i, num_negatives, 0.2, alpha or num_negatives)
        assert found.norm[i].item() == pytest.approx(norm)
        assert found.loss[i].item() == pytest.approx(loss)


def test_no_gradient_is_above_its_bound():
    q, keys = random(200, 4), random(200, 4, seed=1)
    for alpha in (None, 1.0, 4096.0):
        found = query_gradients(q, keys, num_negatives=64, temperature=0.1, alpha=alpha)
        assert bool((found.norm <= found.bound + 1e-12).all())
        assert bool((found.bound <= 2 / 0.1).all())


def equation_7(q, keys, i, temperature, alpha, pool):
    """The right side of equation 7, as it is printed."""
    s0 = np.exp(q[i] @ keys[i] / temperature)
    mean = np.mean([np.exp(q[i] @ k / temperature) for k in pool])
    return 2 / temperature * (1 - s0 / (s0 + alpha * mean))


@pytest.mark.parametrize("alpha", [None, 3.0, 65536.0])
def test_the_expected_bound_is_equation_7_and_no_mean_over_samples_is_above_it(alpha):
    """The left side is a mean over every set of K negatives, with gradients by equation 1."""
    n, k, temperature = 7, 3, 0.3
    rows = [F.normalize(random(n, 3, seed=seed), dim=1) for seed in (0, 1)]
    q, keys = (x.numpy() for x in rows)
    found = query_gradients(*rows, num_negatives=k, temperature=temperature, alpha=alpha)
    for i in range(n):
        others = [keys[j] for j in range(n) if j != i]
        right = equation_7(q, keys, i, temperature, alpha or k, others)
        assert found.expected_bound[i].item() == pytest.approx(right)
        norms = []
        for negatives in itertools.combinations(others, k):
            s = np.exp([q[i] @ keys[i] / temperature, *(q[i] @ x / temperature for x in negatives)])
            s[1:] *= (alpha or k) / k
            p = s / s.sum()
            grad = (p[0] - 1) * keys[i] + sum(w * x for w, x in zip(p[1:], negatives, strict=True))
            norms.append(np.linalg.norm(grad) / temperature)
        assert np.mean(norms) <= right * (1 + 1e-12)


def test_keys_of_a_queue_are_negatives_of_every_query():
    q, keys, queue = random(6, 4), random(6, 4, seed=1), random(9, 4, seed=2)
    found = query_gradients(q, keys, num_negatives=5, temperature=0.2, alpha=64.0, queue=queue)
    units = F.normalize(q, dim=1), F.normalize(keys, dim=1), F.normalize(queue, dim=1)
    for i in range(6):
        one = units[0][i].clone().requires_grad_()
        logits = torch.cat([units[1][i : i + 1], units[2][:5]]) @ one / 0.2
        logits = logits - torch.tensor([math.log(64 / 5), 0, 0, 0, 0, 0])
        loss = F.cross_entropy(logits[None], torch.tensor([0]))
        loss.backward()
        assert found.loss[i].item() == pytest.approx(loss.item())
        assert found.norm[i].item() == pytest.approx(one.grad.norm().item())
        right = equation_7(*(x.numpy() for x in units[:2]), i, 0.2, 64.0, units[2].numpy())
        assert found.expected_bound[i].item() == pytest.approx(right)


@pytest.mark.parametrize("rows", [1, 4])
def test_blocks_of_queries_change_nothing(rows, monkeypatch):
    q, keys = random(10, 6), random(10, 6, seed=1)
    settings = {"num_negatives": 4, "temperature": 0.2, "alpha": 64.0}
    whole = query_gradients(q, keys, **settings)
    monkeypatch.setattr(feature_statistics, "MAX_ELEMENTS", rows * 10)
    for one, other in zip(query_gradients(q, keys, **settings), whole, strict=True):
        torch.testing.assert_close(one, other)


def test_the_bound_is_reached_where_all_negatives_are_opposite():
    """The triangle inequality is an equality when negatives point away from the positive."""
    keys = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    found = query_gradients(keys, keys, num_negatives=1, temperature=0.5)
    torch.testing.assert_close(found.norm, found.bound)


def test_with_eqco_s_rule_the_gradients_depend_less_on_the_number_of_negatives():
    """Figure 4: without the rule they grow with K, with it they stay."""
    keys = F.normalize(random(600, 32), dim=1)
    q = F.normalize(keys + 0.1 * random(600, 32, seed=1), dim=1)

    def ratio(alpha):
        few, many = (
            query_gradients(q, keys, num_negatives=k, temperature=0.2, alpha=alpha).norm.mean()
            for k in (16, 512)
        )
        return (many / few).item()

    assert ratio(None) > 2
    assert ratio(512.0) == pytest.approx(1, abs=0.1)


def test_the_information_bound_of_a_guess_is_zero_and_of_no_loss_is_all():
    assert information_bound(math.log(257), num_negatives=256) == pytest.approx(0)
    assert information_bound(0.0, num_negatives=256) == pytest.approx(math.log(257))
    assert information_bound(1.0, num_negatives=16, alpha=65536.0) == pytest.approx(
        math.log(1 + 16 * math.exp(math.log(65536 / 16))) - 1
    )


def test_a_histogram_counts_everything_once():
    values = torch.tensor([0.0, 0.1, 0.1, 0.99, 1.0, 1.7])
    found = histogram(values, low=0.0, high=1.0, bins=10)
    assert found["counts"] == [1, 2, 0, 0, 0, 0, 0, 0, 0, 3]
    assert len(found["edges"]) == 11 and found["edges"][-1] == pytest.approx(1)


@pytest.mark.parametrize("num_negatives", [0, 10])
def test_more_negatives_than_images_are_refused(num_negatives):
    with pytest.raises(ValueError, match="10 images have 1 to 9"):
        query_gradients(random(10, 2), random(10, 2), num_negatives=num_negatives, temperature=1.0)
