import math

import pytest
import torch

from selfsight.evals.feature_statistics import (
    alignment,
    decay,
    effective_rank,
    eigenvalues,
    feature_std,
    find_same_image,
    lidar,
    uniformity,
)

MEASURES = [effective_rank, feature_std, uniformity, lambda h: alignment(h, h)]


def gaussian(n, d, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_orthonormal_rows_have_full_rank():
    assert effective_rank(torch.eye(12)).item() == pytest.approx(12, rel=1e-4)


def test_isotropic_gaussian_has_nearly_the_rank_of_its_space():
    assert 0.98 * 16 < effective_rank(gaussian(4000, 16)).item() <= 16


@pytest.mark.parametrize("rank", [1, 2, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rank_of_a_subspace_is_its_dimension_in_either_precision(rank, dtype):
    basis = torch.linalg.qr(gaussian(64, rank, seed=1)).Q.T
    h = (gaussian(5000, rank) @ basis).to(dtype)
    assert effective_rank(h).item() == pytest.approx(rank, rel=0.01)


def test_rank_is_rankme_by_singular_values():
    h = gaussian(40, 24) * torch.linspace(0.1, 3, 24)
    share = torch.linalg.svdvals(h)
    share = share / share.sum() + 1e-7
    expected = math.exp(-sum(p * math.log(p) for p in share.tolist()))
    assert effective_rank(h).item() == pytest.approx(expected, rel=1e-9)


def test_rank_is_the_same_from_either_gram_matrix():
    h = gaussian(9, 30)
    assert effective_rank(h).item() == pytest.approx(effective_rank(h.T).item(), rel=1e-9)


def test_rank_and_spread_do_not_depend_on_scale():
    h = gaussian(50, 8)
    assert effective_rank(1e-3 * h).item() == pytest.approx(effective_rank(h).item(), rel=1e-6)
    assert feature_std(1e3 * h).item() == pytest.approx(feature_std(h).item())


def test_rows_that_are_one_point_have_rank_one_and_no_spread():
    h = torch.ones(100, 256) * 0.37
    assert effective_rank(h).item() == pytest.approx(1, abs=0.01)
    assert feature_std(h).item() == pytest.approx(0, abs=1e-5)
    assert uniformity(h).item() == pytest.approx(0, abs=1e-5)
    assert effective_rank(torch.zeros(10, 4)).item() == pytest.approx(1, abs=0.01)


def test_spread_of_all_directions_is_one():
    assert feature_std(gaussian(20000, 64)).item() == pytest.approx(1, abs=0.01)


def test_spread_falls_with_the_length_of_the_mean():
    # |mean|^2 plus the summed variances of unit rows is 1.
    h = gaussian(20000, 64)
    shifted = torch.nn.functional.normalize(h, dim=1) + torch.eye(64, dtype=h.dtype)[0]
    expected = torch.nn.functional.normalize(shifted, dim=1).std(dim=0, correction=0)
    assert feature_std(shifted).item() == pytest.approx(8 * expected.mean().item())
    assert feature_std(shifted).item() < feature_std(h).item()


def test_alignment_of_equal_views_is_zero_and_of_opposite_views_four():
    h = gaussian(20, 5)
    assert alignment(h, 3 * h).item() == pytest.approx(0, abs=1e-12)
    assert alignment(h, -h).item() == pytest.approx(4)


def test_uniformity_of_two_opposite_points_by_hand():
    # one pair at squared distance 4
    assert uniformity(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])).item() == pytest.approx(-8)


def test_uniformity_is_its_definition_in_loops():
    h = torch.nn.functional.normalize(gaussian(7, 3), dim=1)
    potentials = [
        math.exp(-2 * (h[i] - h[j]).pow(2).sum().item()) for j in range(7) for i in range(j)
    ]
    assert uniformity(h).item() == pytest.approx(math.log(sum(potentials) / len(potentials)))


def test_uniformity_of_many_directions_is_near_its_floor():
    assert -4 < uniformity(gaussian(1000, 256)).item() < -3.9


def test_retrieval_of_identical_views_is_one_and_of_swapped_pairs_none():
    h = gaussian(30, 8)
    assert find_same_image(h, h).mean().item() == 1
    assert find_same_image(h, h.roll(1, dims=0)).mean().item() == 0


def test_retrieval_of_unrelated_views_is_chance():
    found = find_same_image(gaussian(2000, 16, seed=1), gaussian(2000, 16, seed=2)).mean().item()
    assert found < 5 / 2000


def test_retrieval_shares_the_point_among_equals():
    assert find_same_image(torch.ones(8, 3), torch.ones(8, 3)).mean().item() == pytest.approx(1 / 8)
    twice = torch.eye(4).repeat(2, 1)
    assert find_same_image(twice, twice).mean().item() == pytest.approx(1 / 2)


@pytest.mark.parametrize("measure", MEASURES)
def test_what_is_not_finite_stays_not_finite(measure):
    h = torch.ones(4, 3)
    h[1, 2] = torch.nan
    assert not math.isfinite(measure(h).item())


@pytest.mark.parametrize("measure", [feature_std, uniformity, lambda h: alignment(h, h.flip(0))])
def test_bfloat16_rises_to_float32(measure):
    h = gaussian(16, 8)
    value = measure(h.bfloat16())
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(measure(h).item(), abs=0.05)


def apply_views(means, spread):
    """Two views of each image for every direction: its mean plus and minus the spread there."""
    d = means.shape[1]
    away = torch.cat([spread * torch.eye(d), -spread * torch.eye(d)]).to(means)
    return means[:, None] + away


@pytest.mark.parametrize("rank", [1, 3, 8])
def test_lidar_counts_the_directions_that_tell_images_apart(rank):
    means = torch.cat([torch.eye(8)[:rank], -torch.eye(8)[:rank]]).double()
    assert lidar(apply_views(means, 0.3)).item() == pytest.approx(rank, rel=1e-4)


def test_lidar_does_not_count_directions_that_only_tell_views_apart():
    """Where the effective rank is fooled: the paper's point against it."""
    means = torch.cat([gaussian(400, 2), torch.zeros(400, 6)], dim=1)
    noise = torch.cat([torch.zeros(400, 10, 2), gaussian(4000, 6).view(400, 10, 6)], dim=2)
    views = means[:, None] + noise
    assert lidar(views).item() == pytest.approx(2, abs=0.1)
    assert effective_rank(views[:, 0]).item() > 6


@pytest.mark.parametrize("n", [12, 60])
def test_lidar_is_the_generalized_eigenvalue_problem_of_scipy(n):
    """With more images than directions, and with fewer."""
    from scipy.linalg import eigh

    views = gaussian(n * 5 * 20, 1).view(n, 5, 20) * torch.linspace(0.1, 2, 20).double()
    mean = views.mean(1)
    between = torch.cov(mean.T)
    within = sum(torch.cov(v.T) for v in views) / n + 1e-4 * torch.eye(20)
    values = eigh(between.numpy(), within.numpy(), eigvals_only=True).clip(min=0)
    share = values / values.sum() + 1e-7
    expected = math.exp(-(share * [math.log(p) for p in share]).sum())
    assert lidar(views).item() == pytest.approx(expected, rel=2e-4)


def test_lidar_does_not_change_when_features_are_turned():
    views = gaussian(30 * 4 * 6, 1, seed=3).view(30, 4, 6)
    turn = torch.linalg.qr(gaussian(6, 6, seed=4)).Q
    assert lidar(views @ turn).item() == pytest.approx(lidar(views).item(), rel=1e-6)


@pytest.mark.parametrize("n", [20, 200])
def test_eigenvalues_are_those_of_the_covariance(n):
    h = gaussian(n, 30) + 5
    expected = torch.linalg.eigvalsh(torch.cov(h.T, correction=0)).flip(0)
    found = eigenvalues(h)
    torch.testing.assert_close(found, expected[: len(found)], atol=1e-10, rtol=1e-8)
    assert len(found) == min(n, 30)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.5])
@pytest.mark.parametrize("count", [6, 50, 400])
def test_decay_finds_the_exponent_of_a_power_law(alpha, count):
    values = 3 * torch.arange(1, count + 1).double() ** -alpha
    assert decay(values).item() == pytest.approx(alpha, rel=1e-9)


def test_decay_is_numpy_s_weighted_line():
    import numpy as np

    values = gaussian(60, 1)[:, 0].exp().sort(descending=True).values
    rank = np.arange(3, 61)
    slope = np.polyfit(np.log(rank), values[2:].log().numpy(), 1, w=rank**-0.5)[0]
    assert decay(values).item() == pytest.approx(-slope, rel=1e-9)


def test_decay_leaves_rounding_out_and_refuses_to_guess():
    values = torch.arange(1, 31).double() ** -1.5
    padded = torch.cat([values, torch.full((30,), 1e-17, dtype=torch.float64)])
    assert decay(padded).item() == pytest.approx(1.5, rel=1e-9)
    assert math.isnan(decay(values[:4]).item())
    assert math.isnan(decay(torch.zeros(50)).item())


def test_lidar_of_what_is_not_finite_is_not_finite():
    views = torch.ones(3, 2, 2)
    views[0, 0, 0] = torch.inf
    assert math.isnan(lidar(views).item())
