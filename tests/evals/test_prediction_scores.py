import numpy as np
import pytest
import torch
from scipy import stats
from sklearn import metrics

from selfsight.evals.bootstrap_intervals import Interval, accuracy_interval, mean_interval
from selfsight.evals.encoder_differences import Difference, paired_differences, unpaired_difference
from selfsight.evals.prediction_scores import (
    PerImage,
    confusion_matrix,
    score_each_class,
    score_predictions,
)


@pytest.fixture
def guesses():
    """Labels of six classes, one of which no image has, and guesses that are often right."""
    generator = np.random.default_rng(0)
    y = generator.choice([0, 1, 2, 3, 5], 400, p=[0.5, 0.2, 0.2, 0.08, 0.02])
    guess = np.where(generator.random(400) < 0.7, y, generator.integers(0, 6, 400))
    return y, guess


def test_accuracies_and_confusion_are_those_of_scikit_learn(guesses):
    y, guess = guesses
    found = score_predictions(torch.tensor(y), {"accuracy": torch.tensor(guess)})
    assert found["accuracy"] == pytest.approx(metrics.accuracy_score(y, guess))
    classes_that_exist = metrics.recall_score(y, guess, labels=np.unique(y), average="macro")
    assert found["balanced_accuracy"] == pytest.approx(classes_that_exist)
    assert found["balanced_accuracy_low"] < found["balanced_accuracy"]
    confusion = confusion_matrix(y, guess, 6)
    assert (confusion == metrics.confusion_matrix(y, guess, labels=range(6))).all()


def test_each_class_has_the_recall_of_scikit_learn_and_no_class_without_images(guesses):
    y, guess = guesses
    found = score_each_class(confusion_matrix(y, guess, 6), "abcdef")
    recall = metrics.recall_score(y, guess, labels=[0, 1, 2, 3, 5], average=None)
    assert list(found) == list("abcdf")
    assert [row["accuracy"] for row in found.values()] == pytest.approx(recall)
    for row, label in zip(found.values(), [0, 1, 2, 3, 5], strict=True):
        correct = (guess == y)[y == label].astype(float)
        assert (row["accuracy_low"], row["accuracy_high"]) == accuracy_interval(correct)[1:]
        assert row["n"] == len(correct)


def test_measures_beside_the_prediction_have_intervals_too():
    y = torch.arange(100) % 10
    close = torch.arange(100) < 90
    found = score_predictions(y, {"accuracy": y, "ema_accuracy": y.flip(0)}, {"top5": close})
    assert (found["top5"], found["ema_accuracy"], found["n"]) == (0.9, 0.0, 100)
    assert found["top5_low"] < 0.9 < found["top5_high"]


def test_the_first_prediction_decides_the_classes_and_one_that_is_always_right_leaves_doubt():
    y = torch.arange(20) % 2
    found = score_predictions(y, {"accuracy": y, "ema_accuracy": 1 - y})
    assert (found["accuracy"], found["balanced_accuracy"], found["ema_accuracy"]) == (1, 1, 0)
    assert found["per_image"].predictions.tolist() == y.tolist()
    clopper_pearson = stats.binomtest(20, 20).proportion_ci()
    assert found["accuracy_low"] == pytest.approx(clopper_pearson.low)
    assert found["ema_accuracy_high"] == pytest.approx(1 - clopper_pearson.low)


def test_pairs_tell_apart_what_intervals_alone_do_not():
    correct = np.random.default_rng(0).random(1000) < 0.6
    better = correct.copy()
    better[np.flatnonzero(~correct)[:30]] = True  # right on 30 images more, and never worse
    a, b = (PerImage(n=1000, values={"accuracy": v.astype(float)}) for v in (better, correct))
    found = paired_differences(a, b)["accuracy"]
    assert found.paired and found.low > 0 and found.difference == pytest.approx(0.03)
    assert found.describe("a", "b").startswith("a is 3.0 points above b (95 % interval +2.0 to")
    ends = [accuracy_interval(x.values["accuracy"]) for x in (a, b)]
    alone = unpaired_difference(*ends, n=1000)
    assert alone.low < 0 < alone.high
    assert "a and b are indistinguishable on these 1,000 images" in alone.describe("a", "b")
    nothing = Difference(-1e-5, -1e-5, 1e-5, 9, paired=True).describe("a", "b")
    assert "(+0.0 points, 95 % interval +0.0 to +0.0)" in nothing


def test_an_unpaired_difference_is_that_of_two_resampled_sets():
    generator = np.random.default_rng(0)
    a, b = (generator.random(900) < 0.7) * 1.0, (generator.random(400) < 0.5) * 1.0
    drawn = generator.binomial(900, a.mean(), 50000) / 900
    drawn = drawn - generator.binomial(400, b.mean(), 50000) / 400
    found = unpaired_difference(mean_interval(a), mean_interval(b), 400)
    assert found[1:3] == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])), abs=0.004)
    assert "unpaired" in found.describe("a", "b")


@pytest.mark.parametrize(
    ("right", "images", "ends"),
    [((56, 48), (70, 80), (0.0524, 0.3339)), ((9, 3), (10, 10), (0.1705, 0.8090))],
)
def test_an_unpaired_difference_has_the_ends_that_newcombe_prints(right, images, ends):
    """Table II of Newcombe 1998, method 10, from Wilson's intervals."""
    intervals = [
        Interval(k / n, *stats.binomtest(k, n).proportion_ci(method="wilson"))
        for k, n in zip(right, images, strict=True)
    ]
    found = unpaired_difference(*intervals, min(images))
    assert found[1:3] == pytest.approx(ends, abs=5e-5)
    backwards = unpaired_difference(*intervals[::-1], min(images))
    assert backwards[:3] == pytest.approx((-found.difference, -found.high, -found.low))


def test_a_difference_whose_interval_ends_at_0_is_not_told_apart():
    for ends in ((0.01, 0.0, 0.02), (-0.01, -0.02, 0.0)):
        said = Difference(*ends, 100, paired=True).describe("a", "b")
        assert "a and b are indistinguishable on these 100 images" in said


def test_replicates_of_the_same_resamples_are_subtracted():
    rows = np.random.default_rng(0).random((2, 1001))
    a, b = (PerImage(n=9, values={}, replicates={"map": row}) for row in rows)
    found = paired_differences(a, b)["map"]
    value, drawn = rows[0, 0] - rows[1, 0], rows[0, 1:] - rows[1, 1:]
    low, high = value + np.quantile(drawn - drawn.mean(), [0.025, 0.975])
    assert found[:3] == pytest.approx((value, low, high)) and found[3:] == (9, True)


def test_encoders_that_agree_on_every_image_may_still_differ_on_others():
    same = PerImage(n=24, values={"accuracy": np.ones(24)})
    found = paired_differences(same, same)["accuracy"]
    most = stats.binomtest(0, 24).proportion_ci().high  # of images on which they disagree
    assert found[:3] == pytest.approx((0, -most, most))
