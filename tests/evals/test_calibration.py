"""Temperature and calibration error, against scipy and a loop over the bins."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from selfsight.evals.calibration import calibration_error, fit_temperature


def sampled(n=400, classes=5, sharpness=3.0, seed=0):
    """Logits that are too sharp: labels are sampled from their softmax at a third of the scale."""
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, classes, generator=g)
    y = torch.multinomial(logits.softmax(dim=1), 1, generator=g)[:, 0]
    return sharpness * logits, y


def test_the_temperature_is_that_of_a_general_minimizer():
    for n, sharpness in ((400, 3.0), (12, 0.2)):
        logits, y = sampled(n, sharpness=sharpness)
        z, c = logits.double().numpy(), logits.shape[1]
        target = np.full(z.shape, 1 / (n + 2) / (c - 1))
        target[np.arange(n), y.numpy()] = (n + 1) / (n + 2)

        def loss(log_t, z=z, target=target):
            scaled = z / np.exp(log_t)
            log_p = scaled - np.logaddexp.reduce(scaled, axis=1, keepdims=True)
            return -(target * log_p).sum()

        best = minimize_scalar(loss, bounds=(-5, 5), method="bounded", options={"xatol": 1e-10})
        assert fit_temperature(logits, y) == pytest.approx(np.exp(best.x), rel=1e-5)


def test_the_calibration_error_is_that_of_a_loop_over_bins():
    logits, y = sampled()
    p = logits.double().softmax(dim=1).numpy()
    confidence, predicted = p.max(axis=1), p.argmax(axis=1)
    expected = 0.0
    for k in range(15):
        inside = (confidence > k / 15) & (confidence <= (k + 1) / 15)
        if inside.any():
            accuracy = (predicted[inside] == y.numpy()[inside]).mean()
            expected += inside.mean() * abs(confidence[inside].mean() - accuracy)
    assert calibration_error(logits, y) == pytest.approx(expected, abs=1e-12)


def test_few_images_that_are_all_correct_do_not_make_it_certain():
    logits = 20 * torch.eye(3)
    y = torch.arange(3)
    confidence = (logits / fit_temperature(logits, y)).softmax(dim=1).diagonal()
    assert confidence.tolist() == pytest.approx([4 / 5] * 3, rel=1e-6)
