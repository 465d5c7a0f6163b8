from dataclasses import replace

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch.nn.functional import pad

from selfsight.errors import UserError
from selfsight.evals.linear_lbfgs import LinearProbe, logistic_regression, standardize
from selfsight.evals.linear_sgd import LinearSGDProbe, SGDGrid, sgd_sweep
from tests.evals.small_networks import Means, bright, labeled
from tests.evals.test_knn import clouds
from tests.evals.test_linear_lbfgs import as_features

SMALL = SGDGrid(epochs=20, batch_size=64, lrs=(1e-3, 1e-1), weight_decays=(0.0, 1e-2))


def swept(classes=5, **settings):
    data = labeled(bright(classes=classes), test=bright(classes=classes))
    return LinearSGDProbe(data=data, grid=replace(SMALL, **settings))


def test_all_settings_at_once_are_each_alone():
    h, y = clouds(100, classes=4)
    x = standardize(h.double(), h.double())
    grid = [(0.1, 0.0), (0.1, 1e-2), (1e-3, 1e-3)]
    settings = dict(num_classes=4, epochs=3, batch_size=32)
    together = sgd_sweep(x, y, grid, **settings)
    for one, weights in zip(grid, together, strict=True):
        torch.testing.assert_close(sgd_sweep(x, y, [one], **settings)[0], weights)


def test_a_setting_is_torchs_sgd():
    h, y = clouds(64, classes=3)
    x = standardize(h.double(), h.double())
    found = sgd_sweep(x, y, [(0.05, 1e-2)], num_classes=3, epochs=5, batch_size=64)[0]
    weights = torch.zeros(9, 3, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([weights], lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
    for _ in range(5):
        loss = torch.nn.functional.cross_entropy(x @ weights, y)
        loss = loss + 1e-2 / 2 * weights[:-1].pow(2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    torch.testing.assert_close(found, weights.detach())


def test_many_steps_approach_what_the_solver_finds():
    h, y = clouds(100, classes=4)
    x = standardize(h.double(), h.double())
    found = sgd_sweep(x, y, [(0.1, 1e-1)], num_classes=4, epochs=150, batch_size=100)
    solved = logistic_regression(x, y, weight_decays=(1e-1,), num_classes=4, tolerance=1e-8)
    torch.testing.assert_close(found[:, :-1], solved[:, :-1], rtol=0, atol=2e-3)


def test_the_better_rate_wins_and_is_named():
    # The classes lie along one column less the other: a first short step sees only the one.
    g = torch.Generator().manual_seed(0)
    y, distributed = torch.randint(0, 2, (400,), generator=g), torch.randn(400, generator=g)
    h = torch.stack([distributed + 0.5 * (2 * y - 1), distributed], dim=1)
    settings = dict(lrs=(1e-7, 1.0), epochs=50)
    train, test = as_features(h[:200], y[:200]), as_features(h[200:], y[200:])
    found = swept(2, **settings).score(train, test)
    assert found["lr"] == 1.0
    assert found["accuracy"] > 0.98
    judge = LogisticRegression(C=1e3).fit(h[:200].numpy(), y[:200].numpy())
    assert found["accuracy"] == pytest.approx(
        judge.score(h[200:].numpy(), y[200:].numpy()), abs=0.02
    )


def test_the_best_setting_is_trained_again_on_all_images_with_the_given_epochs_batch_and_seed():
    h, y = clouds(60, noise=3.0)
    test_h, test_y = clouds(500, noise=3.0, seed=1)
    test_h = 2 * test_h + 1  # with another mean and spread
    length = {"epochs": 2, "batch_size": 7}
    grid = SGDGrid(lrs=(0.03, 0.1), weight_decays=(0.0, 0.1), **length)
    data = labeled(bright(classes=5), test=bright(classes=5))
    probe = LinearSGDProbe(data=data, grid=grid, seed=3)
    found = probe.score(as_features(h, y), as_features(test_h, test_y))
    mean, std = h.mean(dim=0), h.std(dim=0, correction=0)
    x, test_x = (pad((v - mean) / std, (0, 1), value=1.0) for v in (h, test_h))
    best = [(found["lr"], found["weight_decay"])]
    (weights,) = sgd_sweep(x, y, best, num_classes=5, seed=3, **length)
    expected = (test_x @ weights).argmax(dim=1).numpy()
    assert (found["per_image"].predictions == expected).mean() > 0.99


def test_a_rate_that_diverges_never_wins():
    h, y = clouds(300)
    found = swept(lrs=(1e38, 1e-2)).score(as_features(h, y), as_features(h, y))
    assert found["lr"] == 1e-2


def test_shuffled_labels_give_chance():
    h, y = clouds(3000)
    test_h, test_y = clouds(2000, seed=1)
    order = torch.randperm(3000, generator=torch.Generator().manual_seed(0))
    found = swept(batch_size=512).score(as_features(h, y[order]), as_features(test_h, test_y))
    assert found["accuracy"] == pytest.approx(0.2, abs=0.06)


def test_evaluator_on_images_agrees_with_the_solved_probe():
    data = labeled(bright(60), test=bright(30, seed=1))
    assert LinearSGDProbe(data=data, grid=SMALL)(Means())["accuracy"] == 1.0
    assert LinearProbe(data=data)(Means())["accuracy"] == 1.0


def test_out_of_range_settings_are_errors():
    with pytest.raises(UserError, match="one or more learning rates"):
        swept(lrs=())
    with pytest.raises(UserError, match="epochs is 0"):
        swept(epochs=0)
    with pytest.raises(UserError, match="test set"):
        LinearSGDProbe(data=labeled(bright()))
