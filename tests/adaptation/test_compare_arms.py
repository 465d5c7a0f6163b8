import numpy as np
import pytest
from scipy import stats

from selfsight.adaptation.compare_arms import ArmResult, choose
from selfsight.evals.prediction_scores import PerImage, score_per_image


def arm(name, correct, **more):
    per_image = PerImage(n=len(correct), values={"accuracy": np.asarray(correct, float)})
    return ArmResult(name=name, scores={"linear": score_per_image(per_image)}, **more)


def shares(*counts, n=200):
    """Arms that are right on the first `count` of n images."""
    names = ("frozen", "continued", "scratch")
    return [arm(name, np.arange(n) < count) for name, count in zip(names, counts, strict=False)]


def pick(arms):
    return choose(arms, images="200 labeled images")


@pytest.mark.parametrize(
    ("counts", "name", "worse", "words"),
    [
        ((150, 120, 60), "frozen", ("continued", "scratch"), "Do not train: use the frozen one. "),
        ((100, 150, 60), "continued", ("scratch",), "Use continued pretraining. On 200"),
        ((60, 100, 150), "scratch", (), "Use training from scratch. On"),
        ((100, 101, 90), "frozen", ("scratch",), "50.5 % continued (+0.5, 95 % interval"),
        ((100, 150, 151), "continued", (), "Use continued pretraining. "),
        ((100,), "frozen", (), "nothing else was tried"),
    ],
)
def test_the_simplest_arm_within_a_standard_error_of_the_best_is_chosen(counts, name, worse, words):
    found = pick(shares(*counts))
    assert (found.name, found.worse) == (name, worse)
    assert words in found.sentence


def test_a_gain_that_these_images_do_not_prove_is_called_probable():
    frozen, continued = np.zeros(200), np.zeros(200)
    continued[:12], frozen[12:18] = 1, 1  # +3 points, and chance gives it in one of six
    assert stats.binomtest(12, 18).pvalue > 0.05
    found = pick([arm("frozen", frozen), arm("continued", continued)])
    assert found.name == "continued" and "probably better" in found.sentence


def test_no_choice_is_below_the_start_and_nothing_that_a_paired_test_calls_worse_is_kept():
    rng = np.random.default_rng(0)
    for _ in range(100):
        rates = rng.uniform(0.2, 0.8, 3)
        rows = [rng.random(60) < rate for rate in rates]
        names = ("frozen", "continued", "scratch")
        found = pick([arm(n, row) for n, row in zip(names, rows, strict=True)])
        chosen = rows[names.index(found.name)]
        assert chosen.mean() >= rows[0].mean()
        assert found.name not in found.worse
        for name, row in zip(names[1:], rows[1:], strict=True):
            lost, won = (rows[0] & ~row).sum(), (row & ~rows[0]).sum()
            if lost > won and stats.binomtest(int(lost), int(lost + won)).pvalue < 0.01:
                assert name in found.worse


def blind(name, retrieval, rank, n=200):
    generator = np.random.default_rng(0)
    ranks = PerImage(
        n=n, values={}, replicates={"effective_rank": rank + 0.1 * generator.normal(size=101)}
    )
    same = PerImage(n=n, values={"retrieval": (np.arange(n) < retrieval).astype(float)})
    scores = {"retrieval": score_per_image(same), "effective_rank": score_per_image(ranks)}
    return ArmResult(name=name, scores=scores)


@pytest.mark.parametrize(
    ("continued", "name"), [((150, 30), "continued"), ((150, 10), "frozen"), ((100, 30), "frozen")]
)
def test_without_labels_every_measure_must_be_better(continued, name):
    found = pick([blind("frozen", 100, 20), blind("continued", *continued)])
    assert found.name == name
    assert "weak evidence" in found.sentence
