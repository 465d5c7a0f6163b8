"""Intervals against scipy's bootstrap and against loops over resampled images."""

import numpy as np
import pytest
from scipy import stats

from selfsight.evals.bootstrap_intervals import (
    RESAMPLES,
    accuracy_interval,
    balanced_interval,
    mean_interval,
    replicate_interval,
    resampled_rows,
)

ENDS = [0.025, 0.975]


def outcomes(n, shares, seed=0):
    """Random values of -1, 0 and 1 with these shares."""
    return np.random.default_rng(seed).choice([-1.0, 0.0, 1.0], n, p=shares)


@pytest.mark.parametrize(("n", "share"), [(7, 0.5), (100, 0.03), (2000, 0.71), (50000, 0.999)])
def test_an_accuracy_has_the_quantiles_of_the_binomial(n, share):
    correct = (np.arange(n) < round(share * n)).astype(float)
    expected = stats.binom.ppf(ENDS, n, correct.mean()) / n
    assert accuracy_interval(correct)[1:] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("shares", [(0.1, 0.75, 0.15), (0, 0.4, 0.6), (0.3, 0.7, 0), (0.5, 0, 0.5)])
def test_exact_ends_are_those_of_scipys_bootstrap(shares):
    values = outcomes(400, shares)
    result = stats.bootstrap(
        (values,), np.mean, method="percentile", n_resamples=10000, rng=np.random.default_rng(1)
    )
    found = mean_interval(values)
    assert found.value == values.mean()
    # One image that changes sides: scipy's ends are random, and ours are whole images.
    assert found[1:] == pytest.approx(tuple(result.confidence_interval), abs=2.01 / 400)


def test_real_values_are_resampled_as_scipy_does():
    values = np.random.default_rng(0).beta(2, 5, 500)
    result = stats.bootstrap(
        (values,), np.mean, method="percentile", n_resamples=10000, rng=np.random.default_rng(1)
    )
    width = np.subtract(*result.confidence_interval[::-1])
    assert mean_interval(values)[1:] == pytest.approx(
        tuple(result.confidence_interval), abs=0.1 * width
    )
    assert mean_interval(values) == mean_interval(values.copy())


def test_the_balanced_mean_is_resampled_by_images():
    generator = np.random.default_rng(0)
    y = generator.choice([0, 1, 4], 300, p=[0.7, 0.25, 0.05])
    values = (generator.random(300) < np.array([0.9, 0.5, 0, 0, 0.3])[y]).astype(float)

    def balanced(rows):
        present = [values[rows][y[rows] == c].mean() for c in np.unique(y[rows])]
        return np.mean(present)

    drawn = [balanced(generator.integers(0, 300, 300)) for _ in range(3000)]
    expected = np.quantile(drawn, ENDS)
    found = balanced_interval(y, values)
    assert found.value == pytest.approx(balanced(np.arange(300)))
    assert found[1:] == pytest.approx(tuple(expected), abs=0.1 * np.subtract(*expected[::-1]))


def test_a_class_that_a_resample_lacks_does_not_count_in_its_balanced_mean():
    y = np.array([0] * 5 + [1])
    values = (y == 0).astype(float)
    # A third of the resamples lack the only image of class 1, and have a balanced mean of 1.
    assert balanced_interval(y, values) == (0.5, 0.5, 1.0)


def test_all_right_or_all_wrong_still_leaves_doubt():
    for n in (1, 8, 1000):
        clopper_pearson = stats.binomtest(n, n).proportion_ci()
        assert accuracy_interval(np.ones(n))[1:] == pytest.approx(tuple(clopper_pearson))
        low, high = accuracy_interval(np.zeros(n))[1:]
        assert (low, high) == pytest.approx((0, 1 - clopper_pearson.low))
        y = np.arange(n) % 3
        assert balanced_interval(y, np.ones(n)) == accuracy_interval(np.ones(n))


def test_resamples_of_n_images_are_always_the_same_so_that_replicates_are_paired():
    a, b = np.random.default_rng(0).random((2, 50))
    drawn_a, drawn_b = (np.concatenate([v[r].mean(1) for r in resampled_rows(50)]) for v in (a, b))
    assert len(drawn_a) == RESAMPLES
    paired = replicate_interval(a.mean() - b.mean(), drawn_a - drawn_b)
    expected = mean_interval(a - b)  # the resamples' mean is moved to that of the images
    width = expected.high - expected.low
    assert tuple(paired) == pytest.approx(tuple(expected), abs=width / 50)
    unpaired = replicate_interval(a.mean() - b.mean(), drawn_a - drawn_b[::-1])
    assert paired != pytest.approx(unpaired)


def test_a_shifted_interval_has_no_negative_precision_but_negative_differences():
    drawn = np.linspace(0, 0.4, 101)  # their mean is 0.2, their quantiles 0.01 and 0.39
    found = replicate_interval(0.1, drawn)
    assert tuple(found) == pytest.approx((0.1, 0.0, 0.29))
    assert replicate_interval(0.0, drawn - 0.1).low == pytest.approx(-0.19)


def test_95_of_100_intervals_contain_the_true_accuracy():
    generator = np.random.default_rng(0)
    contains = []
    for _ in range(400):
        found = accuracy_interval((generator.random(200) < 0.8).astype(float))
        contains.append(found.low <= 0.8 <= found.high)
    assert 0.92 < np.mean(contains) < 0.98
