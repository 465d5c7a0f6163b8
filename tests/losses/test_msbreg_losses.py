"""MSBReg's losses, written in loops, and what they are at known points."""

import math

import pytest
import torch
import torch.nn.functional as F

from selfsight import dist
from selfsight.evals import feature_statistics
from selfsight.losses import msbreg_losses
from selfsight.losses.predictive import regression

K, N, D = 4, 6, 5


def blocks(seed, k=K):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(k, N, D, generator=g, dtype=torch.float64)


def unit(x):
    return F.normalize(x, dim=-1)


def test_leave_one_out_is_the_distance_to_the_mean_of_the_other_targets():
    p, t = unit(blocks(0)), unit(blocks(1))
    total = 0.0
    for n in range(N):
        for i in range(K):
            centroid = sum(t[j, n] for j in range(K) if j != i) / (K - 1)
            total += float(((p[i, n] - centroid) ** 2).sum())
    assert msbreg_losses.leave_one_out(3 * p, 2 * t).item() == pytest.approx(total / (K * N))


def test_leave_one_out_has_the_gradient_of_all_ordered_pairs():
    a = blocks(0).requires_grad_()
    b = blocks(0).requires_grad_()
    t = unit(blocks(1))
    msbreg_losses.leave_one_out(a, t).backward()
    pairs = [
        (unit(b[i]) - t[j]).pow(2).sum(-1).mean() for i in range(K) for j in range(K) if i != j
    ]
    torch.stack(pairs).mean().backward()
    torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize("loss", [msbreg_losses.leave_one_out, msbreg_losses.repeated_pairs])
def test_with_two_views_it_is_half_of_byol(loss):
    p, t = blocks(0, 2), blocks(1, 2)
    byol = regression(p[0], t[1]) + regression(p[1], t[0])
    assert loss(p, t).item() == pytest.approx(byol.item() / 2)


def test_repeated_pairs_are_independent_runs_of_byol():
    p, t = blocks(0), blocks(1)
    pairs = [regression(p[i], t[j]) for i, j in ((0, 1), (1, 0), (2, 3), (3, 2))]
    assert msbreg_losses.repeated_pairs(p, t).item() == pytest.approx(sum(pairs).item() / 4)


def test_centroids_compare_the_mean_prediction_with_the_mean_target():
    p, t = unit(blocks(0)), unit(blocks(1))
    total = sum(float(((p[:, n].mean(0) - t[:, n].mean(0)) ** 2).sum()) for n in range(N))
    assert msbreg_losses.centroids(p, t).item() == pytest.approx(total / N)


@pytest.mark.parametrize(
    "loss", [msbreg_losses.leave_one_out, msbreg_losses.centroids, msbreg_losses.repeated_pairs]
)
def test_targets_get_no_gradient(loss):
    p, t = blocks(0).requires_grad_(), blocks(1).requires_grad_()
    loss(p, t).backward()
    assert t.grad is None and p.grad.any()


def test_brownian_is_the_mean_cosine_with_one_direction_an_image():
    p, force = blocks(0), blocks(1)[0]
    total = sum(float(unit(p)[k, n] @ unit(force)[n]) for k in range(K) for n in range(N))
    assert msbreg_losses.brownian(p, force).item() == pytest.approx(total / (K * N))


def test_brownian_pushes_but_has_no_mean():
    """Over many forces the potential averages to nothing: it is noise, not a direction."""
    g = torch.Generator().manual_seed(0)
    p = blocks(0)
    values = [
        msbreg_losses.brownian(p, torch.randn(N, D, generator=g, dtype=torch.float64)).item()
        for _ in range(400)
    ]
    spread = torch.tensor(values).std().item()
    assert abs(sum(values) / 400) < 4 * spread / 20
    assert spread > 0.05


def rows(p):
    return unit(p).flatten(0, 1)


def test_singular_a_is_the_squared_correlation_of_pairs_of_columns():
    z = rows(blocks(0))
    z = (z - z.mean(0)) / z.std(0, correction=0)
    total = sum(
        float((z[:, i] * z[:, j]).mean()) ** 2 for i in range(D) for j in range(D) if i != j
    )
    assert msbreg_losses.singular_values(blocks(0), form="a").item() == pytest.approx(
        total, rel=1e-3
    )


def test_singular_b_is_the_distance_of_scaled_squares_from_one():
    sigma = torch.linalg.svdvals(rows(blocks(0)))
    total = sum((D * float(s) ** 2 / (K * N) - 1) ** 2 for s in sigma)
    assert msbreg_losses.singular_values(blocks(0), form="b").item() == pytest.approx(total)


@pytest.mark.parametrize("few", [False, True])
def test_singular_c_is_the_distance_of_the_values_from_their_mean(few):
    p = blocks(0)[:1, :3] if few else blocks(0)  # three rows have but three singular values
    sigma = torch.zeros(D, dtype=torch.float64)
    found = torch.linalg.svdvals(rows(p))
    sigma[: len(found)] = found
    total = float(((sigma - sigma.mean()) ** 2).sum())
    assert msbreg_losses.singular_values(p, form="c").item() == pytest.approx(total)


@pytest.mark.parametrize("form", ["b", "c"])
def test_singular_loss_is_zero_for_equal_singular_values_and_largest_for_one_point(form):
    even = torch.eye(D, dtype=torch.float64).repeat(2, 1)[None]
    point = torch.ones(1, 2 * D, D, dtype=torch.float64)
    other = unit(torch.randn(1, 2 * D, D, dtype=torch.float64))
    loss = {
        name: msbreg_losses.singular_values(x, form=form).item()
        for name, x in (("even", even), ("point", point), ("other", other))
    }
    assert loss["even"] == pytest.approx(0, abs=1e-9)
    assert loss["point"] == pytest.approx(D * (D - 1) if form == "b" else 2 * D * (1 - 1 / D))
    assert 0 < loss["other"] < loss["point"]


def test_uniformity_is_the_measure_of_the_evaluation_averaged_over_views():
    p = blocks(0)
    expected = sum(feature_statistics.uniformity(view).item() for view in p) / K
    assert msbreg_losses.uniformity(p).item() == pytest.approx(expected)
    pairs = [
        math.exp(-2 * float(((unit(p)[0, i] - unit(p)[0, j]) ** 2).sum()))
        for i in range(N)
        for j in range(i)
    ]
    assert msbreg_losses.uniformity(p[:1]).item() == pytest.approx(
        math.log(sum(pairs) / len(pairs))
    )


def shared(name, settings):
    """Value and gradient of the whole batch from this process's share of the images."""
    p = dist.local_rows(blocks(0).transpose(0, 1)).transpose(0, 1).contiguous().requires_grad_()
    loss = getattr(msbreg_losses, name)(p, **settings)
    loss.backward()
    return loss.item(), p.grad


@pytest.mark.parametrize(
    ("name", "settings"),
    [("singular_values", {"form": f}) for f in "abc"] + [("uniformity", {})],
    ids=str,
)
def test_two_processes_equal_one(two_processes, name, settings):
    value, grad = shared(name, settings)
    shares = two_processes(shared, name, settings)
    assert [s[0] for s in shares] == pytest.approx([value, value])
    # the loss of the run is the mean over processes, so a share's own gradient is divided by two
    torch.testing.assert_close(torch.cat([s[1] for s in shares], dim=1) / 2, grad)
