import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression

from selfsight.errors import UserError
from selfsight.evals.extract_features import Features
from selfsight.evals.linear_lbfgs import (
    LinearProbe,
    logistic_regression,
    select_best,
    standardize,
)
from selfsight.evals.stratified_splits import stratified
from tests.evals.small_networks import Means, bright, labeled
from tests.evals.test_knn import clouds


def as_features(h, y):
    return Features(h, y, torch.arange(len(h)))


def probe(classes=3, **settings):
    """An evaluator that will be given features by hand."""
    data = labeled(bright(classes=classes), test=bright(classes=classes))
    return LinearProbe(data=data, **{"max_steps": 60, **settings})


@pytest.mark.parametrize("noise", [0.3, 2.0], ids=["separable", "overlapping"])
def test_solutions_for_all_decays_at_once_are_those_of_scikit_learn(noise):
    """Also for small decays, where gradients are small long before the minimum."""
    h, y = clouds(400, classes=4, dim=12, noise=noise)
    x = standardize(h.double(), h.double())
    decays = (1.0, 1e-2, 1e-4, 1e-6)
    found = logistic_regression(x, y, weight_decays=decays, num_classes=4, tolerance=1e-9)
    in_float32 = logistic_regression(x.float(), y, weight_decays=decays, num_classes=4).double()
    for decay, weights, rounded in zip(decays, found, in_float32, strict=True):
        judge = LogisticRegression(C=1 / (decay * len(y)), tol=1e-12, max_iter=100_000)
        judge.fit(x[:, :-1].numpy(), y.numpy())
        expected = torch.from_numpy(np.vstack([judge.coef_.T, judge.intercept_]))
        least = objective(expected, x, y, decay)
        assert objective(weights, x, y, decay) <= least * (1 + 1e-8)
        assert objective(rounded, x, y, decay) <= least * (1 + 2e-4)
        # Biases are free up to a shift of all classes.
        for w, tolerance in ((weights, 1e-4), (rounded, 0.02)):
            w = torch.cat([w[:-1], w[-1:] - w[-1].mean() + expected[-1].mean()])
            assert (w - expected).norm() <= tolerance * expected.norm()


def objective(weights, x, y, decay):
    loss = torch.nn.functional.cross_entropy(x @ weights, y)
    return (loss + decay / 2 * weights[:-1].square().sum()).item()


def test_blocks_of_rows_change_nothing(monkeypatch):
    h, y = clouds(100, classes=4)
    x = standardize(h.double(), h.double())
    settings = dict(weight_decays=(1e-2, 1e-3), num_classes=4, max_steps=3)
    whole = logistic_regression(x, y, **settings)
    monkeypatch.setattr("selfsight.evals.linear_lbfgs.MAX_LOGITS", 64)
    torch.testing.assert_close(logistic_regression(x, y, **settings), whole)


def test_accuracy_is_within_a_point_of_scikit_learn():
    h, y = clouds(1000, classes=5, dim=16, noise=2.0)
    test_h, test_y = clouds(2000, classes=5, dim=16, noise=2.0, seed=1)
    found = probe(5).score(as_features(h, y), as_features(test_h, test_y))
    mean, spread = h.mean(dim=0), h.std(dim=0, correction=0)
    judge = LogisticRegression(C=1 / (found["weight_decay"] * len(y)), max_iter=1000)
    judge.fit(((h - mean) / spread).numpy(), y.numpy())
    expected = judge.score(((test_h - mean) / spread).numpy(), test_y.numpy())
    assert 0.5 < expected < 0.95
    assert found["accuracy"] == pytest.approx(expected, abs=0.01)


def fit_judge(x, y, decay):
    """scikit-learn's solution of the same problem."""
    judge = LogisticRegression(C=1 / (decay * len(y)), tol=1e-10, max_iter=10_000)
    return judge.fit(x.numpy(), y.numpy())


def test_the_last_fit_has_all_training_images_and_their_mean_and_spread():
    h, y = clouds(60, noise=3.0)
    test_h, test_y = clouds(500, noise=3.0, seed=1)
    test_h = 2 * test_h + 1  # with another mean and spread
    found = probe(5).score(as_features(h, y), as_features(test_h, test_y))
    mean, std = h.mean(dim=0), h.std(dim=0, correction=0)
    judge = fit_judge((h - mean) / std, y, found["weight_decay"])
    expected = judge.predict(((test_h - mean) / std).numpy())
    assert (found["per_image"].predictions == expected).mean() > 0.99


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_held_out_accuracy_is_that_of_a_fit_on_the_other_nine_tenths(seed):
    h, y = clouds(200, noise=2.0)
    found = probe(5, seed=seed).score(as_features(h, y), as_features(h, y))
    x = (h - h.mean(dim=0)) / h.std(dim=0, correction=0)
    split = stratified(y, test_share=0.1, seed=seed)
    judge = fit_judge(x[split.train], y[split.train], found["weight_decay"])
    expected = judge.score(x[split.test].numpy(), y[split.test].numpy())
    assert found["held_out_accuracy"] == pytest.approx(expected)


def test_the_highest_accuracy_is_selected_and_of_equal_ones_the_lowest_loss():
    y = torch.tensor([0, 0, 0, 0])
    right, margin = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 0]]), [0.1, 4.0, 3.0]
    sign = 2.0 * right - 1
    logits = torch.stack([sign, -sign], dim=2) * torch.tensor(margin)[:, None, None]
    losses = [F.cross_entropy(each, y).item() for each in logits]
    assert losses[0] < losses[2] < losses[1]
    assert select_best(logits, y) == (2, 0.75)


def test_without_two_images_of_a_class_the_middle_decay_is_taken():
    h, y = torch.eye(3), torch.arange(3)
    found = probe(weight_decays=(1.0, 0.1, 0.01)).score(as_features(h, y), as_features(h, y))
    assert found["weight_decay"] == 0.1 and "held_out_accuracy" not in found


def test_separable_features_are_separated():
    h, y = clouds(200, noise=0.05)
    test_h, test_y = clouds(200, noise=0.05, seed=1)
    assert probe(5).score(as_features(h, y), as_features(test_h, test_y))["accuracy"] == 1.0


def test_shuffled_labels_give_chance():
    h, y = clouds(1000)
    test_h, test_y = clouds(2000, seed=1)
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(0))
    found = probe(5).score(as_features(h, y[order]), as_features(test_h, test_y))
    assert found["accuracy"] == pytest.approx(0.2, abs=0.06)


def test_scale_and_shift_of_features_do_not_matter():
    h, y = clouds(200)
    test_h, test_y = clouds(300, seed=1)
    plain = probe(5).score(as_features(h, y), as_features(test_h, test_y))
    scale, shift = torch.logspace(-3, 3, 8), torch.linspace(-5, 5, 8)
    moved = (as_features(x * scale + shift, t) for x, t in ((h, y), (test_h, test_y)))
    assert probe(5).score(*moved)["accuracy"] == pytest.approx(plain["accuracy"], abs=0.01)


def test_dead_columns_stay_dead():
    h = torch.randn(50, 3)
    h[:, 1] = 0.7 + 1e-7 * torch.randn(50)  # rounding noise
    x = standardize(h, h)
    assert x[:, 1].abs().max() == 0
    torch.testing.assert_close(x[:, [0, 2]].std(dim=0, correction=0), torch.ones(2))
    assert (x[:, 3] == 1).all()


def test_noise_columns_call_for_decay_and_the_test_set_has_no_say():
    g = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (120,), generator=g)
    h = torch.randn(120, 200, generator=g)
    h[:, 0] += 3.0 * y
    decays = (1.0, 1e-6)
    settings = dict(weight_decays=decays, max_steps=50)
    found = probe(2, **settings).score(as_features(h, y), as_features(h, y))
    turned = probe(2, **settings).score(as_features(h, y), as_features(h, 1 - y))
    assert found["weight_decay"] == turned["weight_decay"] == 1.0
    assert found["held_out_accuracy"] == turned["held_out_accuracy"]
    assert found["accuracy"] == pytest.approx(1 - turned["accuracy"])


def test_evaluator_on_images():
    evaluator = LinearProbe(data=labeled(bright(60), test=bright(30, seed=1)))
    found = evaluator(Means())
    assert found["accuracy"] == 1.0
    assert found["weight_decay"] in evaluator.weight_decays


def test_a_probe_needs_other_images_to_be_scored_on():
    with pytest.raises(UserError, match="test set"):
        LinearProbe(data=labeled(bright()))


def test_features_that_are_not_numbers_give_chance():
    y = torch.arange(60) % 3
    lost = as_features(torch.full((60, 4), torch.inf), y)
    assert probe().score(lost, lost)["accuracy"] == pytest.approx(1 / 3)
