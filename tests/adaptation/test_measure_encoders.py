import functools

import pytest
import torch
from torch import nn

from selfsight.adaptation import measure_encoders
from selfsight.evals.bootstrap_intervals import resampled_rows
from selfsight.evals.feature_statistics import effective_rank
from selfsight.evals.stratified_splits import assign_folds
from tests.evals.small_networks import from_pixels, labeled


def test_every_class_is_spread_evenly_over_the_folds():
    y = torch.randint(0, 7, (123,), generator=torch.Generator().manual_seed(0))
    fold = assign_folds(y, seed=0)
    for label in range(7):
        counts = fold[y == label].bincount(minlength=measure_encoders.FOLDS)
        assert counts.max() - counts.min() <= 1
    assert not torch.equal(fold, assign_folds(y, seed=1))


class Noise(nn.Module):
    """Features that say nothing of the images, wide enough to learn any labels by heart."""

    def __init__(self, scale=0.0):
        super().__init__()
        self.scale, self.weight = scale, nn.Parameter(torch.zeros(()))

    def forward(self, x):
        seed = int(x.sum().item() * 1000) % 2**31
        noise = torch.randn(len(x), 64, generator=torch.Generator().manual_seed(seed))
        return noise + self.scale * x.flatten(1).mean(dim=1, keepdim=True)


def test_no_image_is_predicted_by_a_probe_that_has_seen_it(monkeypatch):
    short = functools.partial(
        measure_encoders.LinearProbe, max_steps=15
    )  # enough to learn by heart
    monkeypatch.setattr(measure_encoders, "LinearProbe", short)
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(60) % 2
    images = from_pixels(torch.randint(0, 256, (60, 3, 4, 4), generator=generator).byte(), y)
    found = measure_encoders.measure_labeled(Noise(), labeled(images), seed=0)
    for name in ("linear", "knn"):  # by heart it would be 1
        assert found[name]["accuracy"] < 0.75
        assert found[name]["n"] == 60
    bright = from_pixels((200 * y[:, None, None, None]).expand(60, 3, 4, 4).byte(), y)
    found = measure_encoders.measure_labeled(Noise(scale=20.0), labeled(bright), seed=0)
    assert found["linear"]["accuracy"] == found["knn"]["accuracy"] == 1


@pytest.mark.parametrize("shape", [(40, 8), (8, 40)])
def test_the_rank_of_a_resample_is_that_of_its_rows(shape):
    h = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    value, *resampled = measure_encoders.resample_rank(h)
    assert value == pytest.approx(effective_rank(h).item(), rel=1e-9)
    rows = next(resampled_rows(len(h)))
    for number in (0, 1, 99):
        expected = effective_rank(h[torch.from_numpy(rows[number]).long()]).item()
        assert resampled[number] == pytest.approx(expected, rel=1e-4)
