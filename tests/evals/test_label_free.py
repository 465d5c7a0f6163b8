import math

import numpy as np
import pytest
import torch
from torch import nn

from selfsight.errors import UserError
from selfsight.evals.bootstrap_intervals import mean_interval
from selfsight.evals.feature_statistics import (
    alignment,
    effective_rank,
    effective_rank_of_gram,
    rank_influence,
    uniformity,
    uniformity_influence,
)
from selfsight.evals.label_free import MEASURES, LabelFreeEvaluator, resampled_rank
from selfsight.views import View
from tests.evals.small_networks import VIEWS, Means, bright, from_pixels

STILL = View(
    size=8,
    scale=(1.0, 1.0),
    ratio=(1.0, 1.0),
    flip=0.0,
    jitter_p=0.0,
    gray=0.0,
    blur=0.0,
    mean=(0.5,),
    std=(0.25,),
)


def test_views_that_change_nothing_are_all_found():
    found = LabelFreeEvaluator(images=bright(30), views=(STILL, STILL))(nn.Flatten())
    assert found["retrieval"] == 1.0
    assert found["alignment"] == pytest.approx(0, abs=1e-10)


def test_a_network_that_sees_nothing_finds_nothing():
    blind = nn.Sequential(nn.Flatten(), nn.Linear(192, 6))
    nn.init.zeros_(blind[1].weight)
    found = LabelFreeEvaluator(images=bright(30), views=VIEWS)(blind)
    assert found["retrieval"] == pytest.approx(1 / 30)
    assert found["effective_rank"] == pytest.approx(1, abs=0.01)
    assert found["uniformity"] == pytest.approx(0, abs=1e-5)


def test_numbers_are_the_pure_functions_of_the_features_of_two_views():
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(192, 16))
    evaluator = LabelFreeEvaluator(images=bright(40), views=VIEWS)
    (h1, h2), found = evaluator.encode_views(backbone), evaluator.score(backbone)
    assert found["alignment"] == pytest.approx(alignment(h1, h2).item(), rel=1e-5)
    assert found["uniformity"] == pytest.approx(uniformity(h1).item(), rel=1e-5)
    assert found["effective_rank"] == pytest.approx(effective_rank(h1).item(), rel=1e-5)
    for name, values in (
        ("uniformity", uniformity(h1) + uniformity_influence(h1)),
        ("effective_rank", resampled_rank(h1)),
    ):
        expected = mean_interval(values.double().numpy())
        assert (found[f"{name}_low"], found[f"{name}_high"]) == pytest.approx(
            expected[1:], rel=1e-5
        )


def test_the_seed_decides_which_images_are_sampled():
    images = bright(50)
    every, *some = (
        LabelFreeEvaluator(images=images, views=(STILL, STILL), **settings).encode_views(Means())[0]
        for settings in ({}, {"max_images": 12}, {"max_images": 12, "seed": 1})
    )
    rows = [{tuple(row) for row in h.tolist()} for h in (every, *some)]
    first = LabelFreeEvaluator(images=bright(12), views=(STILL, STILL)).encode_views(Means())[0]
    assert [len(found) for found in rows] == [50, 12, 12] and rows[1] | rows[2] <= rows[0]
    assert rows[1] != rows[2] and {tuple(row) for row in first.tolist()} not in rows


def test_numbers_depend_on_the_seed_alone():
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(192, 16))
    images = bright(40, labeled=False)
    one = LabelFreeEvaluator(images=images, views=VIEWS, batch_size=7)(backbone)
    torch.manual_seed(5)
    two = LabelFreeEvaluator(images=images, views=VIEWS, batch_size=40)(backbone)
    assert one == pytest.approx(two, rel=1e-4)
    other = LabelFreeEvaluator(images=images, views=VIEWS, seed=1)(backbone)
    assert other["alignment"] != pytest.approx(one["alignment"], rel=1e-4)


def test_a_single_view_is_drawn_twice():
    found = LabelFreeEvaluator(images=bright(20), views=VIEWS[:1])(nn.Flatten())
    assert found["alignment"] > 0


def test_at_most_the_limit_is_looked_at():
    seen = []

    class Counting(Means):
        def forward(self, x):
            seen.append(len(x))
            return super().forward(x)

    LabelFreeEvaluator(images=bright(50), views=VIEWS, max_images=12, batch_size=5)(Counting())
    assert sum(seen) == 2 * 12


def test_all_numbers_are_finite_for_two_images():
    found = LabelFreeEvaluator(images=bright(2), views=VIEWS)(Means())
    assert all(math.isfinite(value) for value in found.values())


def test_one_image_is_refused():
    with pytest.raises(UserError, match="There are 1 images"):
        LabelFreeEvaluator(
            images=from_pixels(torch.zeros(1, 3, 4, 4, dtype=torch.uint8)), views=VIEWS
        )


@pytest.mark.parametrize(("n", "d"), [(100, 12), (60, 80)])
def test_intervals_of_rank_and_uniformity_are_the_spread_over_fresh_images(n, d):
    generator = np.random.default_rng(0)
    scale = np.arange(1, d + 1) ** -0.7
    means = generator.normal(size=(4, d))
    found = {"effective_rank": [], "uniformity": []}
    errors = {name: [] for name in found}
    for _ in range(60):
        h = means[generator.integers(0, 4, n)] + generator.normal(size=(n, d)) * scale
        h = torch.from_numpy(h)
        values = {"effective_rank": resampled_rank(h), "uniformity": uniformity_influence(h)}
        numbers = {"effective_rank": effective_rank(h), "uniformity": uniformity(h)}
        assert values["effective_rank"].mean().item() == pytest.approx(numbers["effective_rank"])
        for name, value in values.items():
            found[name].append(numbers[name].item())
            errors[name].append(value.std(correction=0).item() / n**0.5)
    for name, values in found.items():
        assert np.mean(errors[name]) == pytest.approx(np.std(values), rel=0.25), name


def test_an_influence_is_the_derivative_by_the_weight_of_an_image():
    h = torch.randn(20, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weight = torch.ones(20, dtype=torch.float64, requires_grad=True)
    rank = effective_rank_of_gram((h * weight[:, None]).T @ h)
    (slope,) = torch.autograd.grad(rank, weight)
    torch.testing.assert_close(rank_influence(h), 20 * slope, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(rank_influence(h[:5]).mean(), torch.zeros(()).double())


def test_every_measure_has_an_interval_around_it():
    scores = LabelFreeEvaluator(images=bright(40), views=VIEWS).score(Means())
    for name in MEASURES:
        assert scores[f"{name}_low"] <= scores[name] <= scores[f"{name}_high"], name
    assert scores["n"] == 40
