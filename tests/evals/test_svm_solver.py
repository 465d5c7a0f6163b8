import numpy as np
import pytest
import torch
from sklearn.svm import LinearSVC

from selfsight.evals import svm_solver
from selfsight.evals.svm_solver import fit_costs

COSTS = (0.01, 1.0, 30.0, 1000.0)


def overlapping(n, d, noise):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, d, generator=g, dtype=torch.float64)
    x /= x.norm(dim=1, keepdim=True)
    present = x[:, 0] + noise * torch.randn(n, generator=g, dtype=torch.float64) > 0.1
    return torch.nn.functional.pad(x, (0, 1), value=1.0), present


def liblinear(x, present, cost, tolerance=1e-12):
    svm = LinearSVC(C=cost, dual=False, class_weight={True: 2, False: 1}, tol=tolerance)
    svm.set_params(max_iter=100_000).fit(x[:, :-1].numpy(), present.numpy())
    return np.append(svm.coef_[0], svm.intercept_)


@pytest.mark.parametrize(
    ("n", "d", "noise"), [(300, 5, 0.3), (60, 80, 0.1)], ids=["many images", "many features"]
)
@pytest.mark.parametrize("cg_steps", [0, 20], ids=["direct", "conjugate gradients"])
def test_the_weights_are_those_of_liblinear(n, d, noise, cg_steps, monkeypatch):
    monkeypatch.setattr(svm_solver, "MAX_CG_STEPS", cg_steps)
    x, present = overlapping(n, d, noise)
    fits = fit_costs(x, present, COSTS, positive_weight=2.0, tolerance=1e-9)
    assert all(fit.converged for fit in fits)
    for cost, fit in zip(COSTS, fits, strict=True):
        expected = liblinear(x, present, cost)
        np.testing.assert_allclose(fit.weights.numpy(), expected, atol=1e-5 * abs(expected).max())


def test_the_tolerance_bounds_the_error_of_the_weights():
    x, present = overlapping(200, 20, 0.3)
    exact = fit_costs(x, present, COSTS, tolerance=1e-10)
    for fit, best in zip(fit_costs(x, present, COSTS, tolerance=1e-2), exact, strict=True):
        assert (fit.weights - best.weights).norm() <= 1e-2 * fit.weights.norm()
    assert not fit_costs(x, present, (1000.0,), max_steps=1)[0].converged


def test_order_of_costs_and_start_do_not_matter():
    x, present = overlapping(100, 10, 0.3)
    low, high = fit_costs(x, present, (0.1, 10.0), tolerance=1e-10)
    (again,) = fit_costs(x, present, (0.1,), tolerance=1e-10, start=high.weights)
    torch.testing.assert_close(again.weights, low.weights)
    reverse = fit_costs(x, present, (10.0, 0.1), tolerance=1e-10)
    torch.testing.assert_close(reverse[1].weights, low.weights)
    torch.testing.assert_close(reverse[0].weights, high.weights)
