import json
import math
import subprocess
import sys
from dataclasses import asdict

import numpy as np
import pytest

from selfsight.evals.bootstrap_intervals import mean_interval
from selfsight.run_files.run_results import put_main_first
from selfsight.runs.verdict import judge, judge_evidence
from selfsight.runs.verdict_evidence import LabeledScore, RunEvidence, gather_evidence
from selfsight.runs.verdict_rules import find_gain
from selfsight.train.collapse import CollapseAlarm


def score(accuracy, untrained, *, images=2000, name="kNN accuracy"):
    """A score whose two networks err independently, as different ones nearly do."""
    error = math.sqrt((accuracy * (1 - accuracy) + untrained * (1 - untrained)) / images)
    gain, half = accuracy - untrained, 1.96 * error
    return LabeledScore(
        name=name,
        accuracy=accuracy,
        untrained=untrained,
        gain_low=gain - half,
        gain_high=gain + half,
        images=images,
    )


def knn(*args, **kwargs):
    return {"labeled": (score(*args, **kwargs),)}


def both(knn, linear, **kwargs):
    return {"labeled": (score(*knn, **kwargs), score(*linear, name="linear accuracy", **kwargs))}


HIGHEST = {"feature_std": 0.6, "effective_rank": 26.0}
HIGHEST |= {"embedding_std": 0.95, "embedding_rank": 23.0}
HEALTHY = dict(
    records=50,
    loss=4.3,
    chance_loss=5.55,
    feature_std=0.56,
    effective_rank=25.0,
    embedding_std=0.94,
    highest=HIGHEST,
    embedding_rank=22.0,
    embedding_dim=64,
    batch_size=64,
    trained_rank=30.0,
    untrained_rank=18.9,
    **knn(0.33, 0.21),
    chance=0.12,
    retrieval=0.10,
    untrained_retrieval=0.045,
    retrieval_images=2048,
    first_loss=5.4,
    queue_steps=4.0,
    queue_epochs=0.16,
    teacher_steps=100.0,
)

# Numbers measured on small runs of ten classes of photographs.
BYOL = HEALTHY | dict(
    chance_loss=None, loss=1.4, embedding_std=0.79, queue_steps=None, queue_epochs=None
)
WITHOUT_PREDICTOR = BYOL | dict(
    predictor=False,
    loss=0.03,
    embedding_std=0.10,
    embedding_rank=5.1,
    retrieval=0.033,
    **knn(0.262, 0.21),
)
STALE = HEALTHY | dict(
    loss=7.3,
    chance_loss=7.38,
    embedding_std=0.33,
    embedding_rank=2.5,
    effective_rank=9.8,
    trained_rank=12.2,
    **knn(0.23, 0.21),
    retrieval=0.027,
    queue_steps=25.0,
    queue_epochs=1.0,
    teacher_steps=2.0,
)
STALE_BUT_GAINING = STALE | dict(
    **knn(0.327, 0.21), queue_steps=128.0, queue_epochs=5.1, teacher_steps=10.0
)

CASES = {
    "healthy contrast": (HEALTHY, "learning", ["33.0%", "21.0%", "12.0%", "30 directions"]),
    "healthy prediction": (BYOL, "learning", ["33.0%"]),
    "no predictor": (WITHOUT_PREDICTOR, "collapsed", ["embeddings", "0.10", "predictor"]),
    "no predictor, embeddings not logged": (
        WITHOUT_PREDICTOR | dict(embedding_std=None, embedding_rank=None, **knn(0.22, 0.21)),
        "collapsed",
        ["predictor"],
    ),
    "no predictor, but a gain": (
        WITHOUT_PREDICTOR | dict(highest=HIGHEST | {"embedding_std": 0.1}, **knn(0.33, 0.21)),
        "learning",
        ["33.0%"],
    ),
    "features are one point": (
        HEALTHY | dict(feature_std=0.004, effective_rank=1.0, loss=5.55, **knn(0.12, 0.21)),
        "collapsed",
        ["features", "one point", "0.004"],
    ),
    "embeddings fell": (
        BYOL
        | dict(embedding_std=0.25, embedding_rank=5.0, highest=HIGHEST | {"embedding_std": 0.8}),
        "collapsed",
        ["embeddings", "0.25"],
    ),
    "embeddings fell and use as many directions": (
        BYOL | dict(embedding_std=0.25, highest=HIGHEST | {"embedding_std": 0.8}),
        "learning",
        ["33.0%"],
    ),
    "embeddings are narrow but rising": (
        HEALTHY | dict(embedding_std=0.25, highest=HIGHEST | {"embedding_std": 0.25}),
        "learning",
        ["33.0%"],
    ),
    # MoCo with dim=8 in two epochs on stripes: eight points, while its embeddings stay narrow.
    "embeddings are narrow from the first record on": (
        HEALTHY
        | dict(embedding_std=0.10, embedding_rank=2.3, embedding_dim=8)
        | dict(highest=HIGHEST | {"embedding_std": 0.26, "embedding_rank": 4.2}),
        "learning",
        ["33.0%"],
    ),
    "the same without a gain": (
        HEALTHY
        | dict(embedding_std=0.10, embedding_rank=2.3, embedding_dim=8, **knn(0.21, 0.21))
        | dict(highest=HIGHEST | {"embedding_std": 0.26, "embedding_rank": 4.2}),
        "unclear",
        ["no clear gain"],
    ),
    "embeddings were one point in the first record": (
        HEALTHY | dict(embedding_std=0.03, highest=HIGHEST | {"embedding_std": 0.03}),
        "collapsed",
        ["embeddings", "one point", "0.03"],
    ),
    "features had one direction in the first record": (
        HEALTHY | dict(effective_rank=1.2, highest=HIGHEST | {"effective_rank": 1.2}),
        "collapsed",
        ["features", "1.2 directions"],
    ),
    "no predictor, collapsed before the first record": (
        WITHOUT_PREDICTOR | dict(highest=HIGHEST | {"embedding_std": 0.1}, **knn(0.22, 0.21)),
        "collapsed",
        ["embeddings", "0.10", "predictor"],
    ),
    "few directions": (
        HEALTHY | dict(effective_rank=2.3, **knn(0.22, 0.21)),
        "collapsed",
        ["features", "2.3 directions", "dimensional collapse"],
    ),
    "few directions in the embeddings": (
        HEALTHY | dict(embedding_rank=2.1),
        "collapsed",
        ["embeddings", "2.1 of 64 directions", "dimensional collapse"],
    ),
    "half of the directions lost and no gain": (
        HEALTHY | dict(trained_rank=7.0, **knn(0.21, 0.21)),
        "collapsed",
        ["7.0 directions", "18.9"],
    ),
    "half of the directions lost but many left": (
        HEALTHY | dict(trained_rank=40.0, untrained_rank=121.0, **knn(0.21, 0.21)),
        "unclear",
        ["no clear gain"],
    ),
    "half of the directions lost but a gain": (
        HEALTHY | dict(trained_rank=7.0),
        "learning",
        ["7 directions"],
    ),
    "embeddings of three numbers have no four directions": (
        HEALTHY
        | dict(embedding_rank=1.4, embedding_dim=3, highest=HIGHEST | {"embedding_rank": 2.5}),
        "learning",
        ["33.0%"],
    ),
    "a batch of eight cannot show more": (
        HEALTHY | dict(batch_size=8, effective_rank=3.4, embedding_rank=3.2),
        "learning",
        ["33.0%"],
    ),
    "stale queue": (STALE, "collapsed", ["queue", "25 steps", "2)", "momentum"]),
    "stale queue with a gain": (STALE_BUT_GAINING, "collapsed", ["queue", "128 steps", "10)"]),
    "stale queue, embeddings not logged": (
        STALE | dict(embedding_std=None, embedding_rank=None),
        "unclear",
        ["no clear gain", "guessing", "queue", "25 steps"],
    ),
    "old queue that does no harm": (
        HEALTHY | dict(queue_steps=128.0, queue_epochs=5.1),
        "learning",
        ["33.0%", "although the queue", "5.1 epochs"],
    ),
    "loss at chance without a gain": (
        HEALTHY | dict(loss=5.54, **knn(0.20, 0.21)),
        "unclear",
        ["20.0%", "21.0%", "5.54", "guessing"],
    ),
    "loss at chance, nothing else known": (
        dict(records=10, loss=5.54, chance_loss=5.55),
        "unclear",
        ["5.54", "5.55", "guessing"],
    ),
    "worse than untrained": (
        HEALTHY | dict(**knn(0.12, 0.21)),
        "unclear",
        ["worse", "12.0%", "21.0%"],
    ),
    "no clear gain": (HEALTHY | knn(0.24, 0.21), "unclear", ["a gain, but not a clear one"]),
    "small gain near the top": (HEALTHY | knn(0.975, 0.955, images=10_000), "learning", []),
    "five points on a few images": (
        HEALTHY | knn(0.26, 0.21, images=400),
        "unclear",
        ["26.0% of 400 images", "no clear gain (+5.0 points, 95 % interval -0.9 to +10.9)"],
    ),
    "linear rose, kNN did not": (
        HEALTHY | both((0.22, 0.21), (0.40, 0.21)),
        "learning",
        ["22.0%", "linear accuracy 40.0% against 21.0%"],
    ),
    "linear rose, kNN fell": (
        HEALTHY | both((0.17, 0.21), (0.40, 0.21)),
        "unclear",
        ["17.0%", "40.0%", "one rose and the other fell"],
    ),
    "both rose a little, and agree": (
        HEALTHY | both((0.248, 0.21), (0.248, 0.21)),
        "learning",
        ["24.8%"],
    ),
    "both rose by less than a point, on very many images": (
        HEALTHY | both((0.216, 0.21), (0.216, 0.21), images=200_000),
        "unclear",
        ["21.6%"],
    ),
    "the better of two accuracies is above guessing": (
        HEALTHY | both((0.12, 0.02), (0.50, 0.21)) | dict(chance=0.12),
        "learning",
        ["12.0%"],
    ),
    "a gain, but no better than guessing": (
        HEALTHY | knn(0.12, 0.02) | dict(chance=0.12),
        "unclear",
        ["12.0%", "not clearly better than guessing"],
    ),
    "raw pixels do better": (
        HEALTHY | knn(0.776, 0.703) | dict(pixels=0.824),
        "learning",
        ["77.6%", "70.3%", "but raw pixels give 82.4%"],
    ),
    "a loss that fell, but not by a tenth below guessing": (
        HEALTHY | dict(labeled=(), retrieval=None, loss=5.2, first_loss=5.6),
        "unclear",
        ["evaluate the run"],
    ),
    "loss below guessing from the start": (
        HEALTHY | dict(labeled=(), retrieval=None, first_loss=4.3),
        "unclear",
        ["evaluate the run"],
    ),
    "retrieval of few images": (
        HEALTHY | dict(labeled=(), retrieval_images=100),
        "unclear",
        ["10.0%", "no clear gain"],
    ),
    "retrieval that rose a little": (
        HEALTHY | dict(labeled=(), retrieval=0.05, retrieval_gain=(0.001, 0.009)),
        "unclear",
        ["5.0%", "4.5%", "a gain, but not a clear one"],
    ),
    "retrieval that was high before": (
        HEALTHY | dict(labeled=(), retrieval=0.9, untrained_retrieval=0.7),
        "learning",
        ["90.0%", "70.0%"],
    ),
    "retrieval that rose clearly in points but not in odds": (
        HEALTHY
        | dict(labeled=(), retrieval=0.5, untrained_retrieval=0.45, retrieval_images=20_000),
        "unclear",
        ["50.0%", "45.0%", "no clear gain"],
    ),
    "retrieval that fell": (
        HEALTHY | dict(labeled=(), retrieval=0.045, untrained_retrieval=0.10),
        "unclear",
        ["4.5%", "10.0%", "that is worse"],
    ),
    "without labels": (
        HEALTHY | dict(labeled=()),
        "learning",
        ["second view", "10.0%", "4.5%"],
    ),
    "without labels or gain": (
        HEALTHY | dict(labeled=(), retrieval=0.05),
        "unclear",
        ["5.0%", "4.5%", "no clear gain"],
    ),
    "by the loss alone": (
        HEALTHY | dict(labeled=(), retrieval=None),
        "learning",
        ["loss alone", "4.30", "5.55"],
    ),
    "nothing measured": (BYOL | dict(labeled=(), retrieval=None), "unclear", ["evaluate"]),
    "few records of a run with a gain": (
        dict(records=2, **knn(0.33, 0.21), chance=0.12),
        "learning",
        ["33.0%"],
    ),
    "too few records": (dict(records=2, loss=4.0, chance_loss=5.5), "unclear", ["2 log records"]),
    "diverged": (HEALTHY | dict(diverged=True), "unclear", ["no longer finite", "diverged"]),
    "empty": ({}, "unclear", ["0 log records"]),
}


@pytest.mark.parametrize("name", CASES)
def test_verdict_names_what_happened(name):
    facts, word, said = CASES[name]
    answer = judge_evidence(RunEvidence(**facts))
    assert answer.verdict == word, answer.sentence
    assert answer.sentence.lower().startswith(word)
    missing = [words for words in said if words not in answer.sentence]
    assert not missing, answer.sentence


@pytest.mark.parametrize("name", CASES)
def test_verdict_is_one_sentence(name):
    sentence = judge_evidence(RunEvidence(**CASES[name][0])).sentence
    assert sentence.endswith(".")
    assert ". " not in sentence


@pytest.mark.parametrize(
    ("gains", "errors", "expected"),
    [
        ((0.036,), 0.01, 1),  # 3.6 standard errors
        ((0.034,), 0.01, 0),
        ((-0.034,), 0.01, 0),
        ((-0.036,), 0.01, -1),
        ((0.009,), 0.001, 0),  # clear, but less than a point
        ((0.034, 0.022), 0.01, 1),  # 2.8 on average
        ((0.034, 0.020), 0.01, 0),  # 2.7
        ((-0.036, 0.036), 0.01, 0),  # they contradict each other
        ((0.036, -0.019), 0.01, 1),
        ((0.036, -0.021), 0.01, 0),
    ],
)
def test_a_gain_is_clear_by_its_standard_errors(gains, errors, expected):
    scores = [
        LabeledScore(
            name="kNN accuracy",
            accuracy=0.5 + gain,
            untrained=0.5,
            gain_low=gain - 1.96 * errors,
            gain_high=gain + 1.96 * errors,
            images=2000,
        )
        for gain in gains
    ]
    assert find_gain(RunEvidence(labeled=tuple(scores), chance=0.1)) == expected


def test_rows_of_the_evidence_name_what_is_worse_than_untrained_and_than_pixels():
    for accuracy, meaning in ((0.12, "worse ("), (0.33, "better (")):
        facts = HEALTHY | knn(accuracy, 0.21) | dict(pixels=0.2)
        rows = {row.name: row for row in judge_evidence(RunEvidence(**facts)).evidence}
        assert rows["kNN accuracy"].meaning.startswith(meaning)
        who = "pixels" if accuracy < 0.2 else "the features"
        assert rows["raw pixels, in the same way"].meaning == f"{who} do better"


def test_every_known_number_is_evidence():
    names = {
        row.name: row for row in judge_evidence(RunEvidence(**WITHOUT_PREDICTOR | STALE)).evidence
    }
    assert set(names) == {
        "loss",
        "feature spread",
        "effective rank",
        "embedding spread",
        "embedding rank",
        "rank against untrained",
        "kNN accuracy",
        "same-image retrieval",
        "age of the queue",
        "predictor",
    }
    assert names["age of the queue"].value == "25 steps (1.00 epochs)"
    assert names["age of the queue"].meaning == "stale"
    assert names["embedding rank"].meaning == "only a few directions are used"
    assert names["loss"].meaning == "no better than guessing"


def test_nothing_known_gives_no_evidence():
    assert judge_evidence(RunEvidence()).evidence == ()


def record(step, **values):
    fine = {
        "loss": 4.0 + 20 / step,
        "chance_loss": 5.55,
        "feature_std": 0.5,
        "effective_rank": 20.0,
    }
    return {"step": step, "epoch": step / 25, **fine, **values}


def result(accuracy, untrained, n=1000):
    """A result file of kNN, without what the verdict does not read."""
    gain = accuracy - untrained
    interval = {"difference": gain, "low": gain - 0.04, "high": gain + 0.04}
    return {
        "accuracy": accuracy,
        "untrained_accuracy": untrained,
        "n": n,
        "differences": {"untrained": {"accuracy": interval}},
    }


RECIPE = {
    "method": {"name": "moco", "queue_size": 1600, "momentum": 0.5, "dim": 64},
    "batch_size": 64,
}


def test_facts_are_gathered_from_the_run_folder():
    ranks = [12.0] * 10 + [2.0] * 9
    records = [
        record(10 * i, embedding_std=0.9, embedding_rank=rank) for i, rank in enumerate(ranks, 1)
    ]
    results = {
        "knn": result(0.2, 0.21),
        "baselines": {"chance": 0.1},
        "label_free": {"effective_rank": {"trained": 12.0, "untrained": 19.0}},
    }
    answer = judge(records, results, RECIPE)
    assert answer.verdict == "collapsed"
    assert "2.0 of 64 directions" in answer.sentence
    assert "25 steps ago, and the teacher averages over about 2" in answer.sentence
    rows = {row["name"]: row for row in asdict(answer)["evidence"]}
    assert rows["age of the queue"]["value"] == "25 steps (1.00 epochs)"
    assert rows["rank against untrained"]["value"] == "12.0"
    assert json.loads(json.dumps(asdict(answer)))["sentence"] == answer.sentence


def test_numbers_of_a_log_are_medians_and_those_of_a_momentum_are_time_constants():
    losses = [9.0, 5.0, 5.2, 5.1, 5.3, 4.0, 4.2, 4.1, 4.3, 0.1]
    records = [record(10 * i, loss=loss) for i, loss in enumerate(losses, 1)]
    recipe = {"method": {"momentum": 0.99}}
    ends = {"trained_low": 11.0, "trained_high": 13.0}
    rank = {"trained": 12.0, "untrained": 19.0, "untrained_low": 18.0, "untrained_high": 20.0}
    found = gather_evidence(records, {"label_free": {"effective_rank": rank | ends}}, recipe)
    assert (found.first_loss, found.loss) == (5.2, 4.1)  # of five records each
    assert found.teacher_steps == pytest.approx(100)
    assert found.rank_ends == (11.0, 13.0)


def test_the_last_collapse_and_the_first_skipped_step_count():
    def event(kind, step):
        return {"event": kind, "step": step}

    events = [event("skipped", 7), event("skipped", 9)]
    events += [event("collapsed", 10), event("recovered", 20), event("collapsed", 30)]
    found = gather_evidence([], {}, {}, events)
    assert (found.first_skipped, found.collapsed_at, found.recovered_at) == (7, 30, None)
    said = judge_evidence(RunEvidence(**HEALTHY | dict(collapsed_at=30))).sentence
    assert said.endswith(" While it was training, it had collapsed from step 30.")
    found = gather_evidence([], {}, {}, [*events, event("recovered", 40)])
    assert (found.collapsed_at, found.recovered_at) == (30, 40)
    said = judge_evidence(RunEvidence(**HEALTHY | dict(collapsed_at=30, recovered_at=40))).sentence
    assert said.endswith(" it had collapsed from step 30 until step 40.")
    gone = HEALTHY | dict(feature_std=0.0, **knn(0.1, 0.21))
    for recovered_at, count in ((None, 0), (40, 1)):  # one sentence says it if it lasts
        facts = gone | dict(collapsed_at=30, recovered_at=recovered_at)
        sentence = judge_evidence(RunEvidence(**facts)).sentence
        assert sentence.startswith("Collapsed") and sentence.count("had collapsed") == count


CONSTANT = {"feature_std": 0.0, "effective_rank": 1.0}  # features that are equal for all images
NARROW = {"embedding_std": 0.1, "embedding_rank": 2.3}  # of embeddings of 8 numbers, untrained too
WIDE = {"embedding_std": 0.9, "embedding_rank": 20.0}
RUNS = {
    "constant features from the first record on": ([CONSTANT] * 8, True),
    "constant embeddings": ([{"embedding_std": 0.0, "embedding_rank": 1.0}] * 8, True),
    "narrow from the first record on": ([NARROW] * 8, False),
    "fallen": ([WIDE] * 4 + [NARROW] * 8, True),
    "fallen after the first record": ([WIDE] + [NARROW] * 8, True),
    "one unusual batch": ([WIDE] * 6 + [NARROW] + [WIDE] * 2, False),
}


@pytest.mark.parametrize("name", RUNS)
def test_the_verdict_and_the_alarm_have_one_rule(name):
    """A run of each kind by its log, with a clear gain of kNN accuracy."""
    values, collapsed = RUNS[name]
    records = [record(10 * i, **changed) for i, changed in enumerate(values, 1)]
    recipe = {"method": {"name": "moco", "dim": 8}, "batch_size": 64}
    answer = judge(records, {"knn": result(0.5, 0.2), "baselines": {"chance": 0.1}}, recipe)
    assert answer.verdict == ("collapsed" if collapsed else "learning"), answer.sentence
    alarm = CollapseAlarm(epochs=2, batch_size=64, embedding_dim=8)
    said = [alarm.update(r) for r in records]
    assert ("collapsed" in {a.event for a in said if a}) == collapsed
    meanings = {row.name: row.meaning for row in answer.evidence}
    if name == "narrow from the first record on":
        assert meanings["embedding rank"] == "low, but not fallen by half: no collapse"


def test_an_evaluation_counts_more_than_online_knn():
    online = result(0.6, 0.2)
    records = [record(10 * i) for i in range(1, 9)]
    results = {"online_knn": online, "online_baselines": {"chance": 0.1}}
    assert judge(records, results, {}).sentence.startswith(
        "Learning: online_knn accuracy (on training images) is 60.0% of 1,000 images, against "
        "20.0% for the untrained network and 10.0% by guessing"
    )
    results["knn"] = result(0.5, 0.3)
    assert (
        "kNN accuracy is 50.0% of 1,000 images, against 30.0%"
        in judge(records, results, {}).sentence
    )
    assert "online" not in judge(records, results, {}).sentence
    assert "guessing" not in judge(records, results, {}).sentence  # known of other images only


def at(size, found, fingerprint="test images"):
    """The result, measured on crops of this size."""
    return found | {"settings": {"fingerprint": fingerprint, "transform": {"size": size}}}


def test_results_of_other_images_or_sizes_are_not_mixed():
    records = [record(10 * i) for i in range(1, 9)]
    recipe = RECIPE | {"views": [{"size": 32}]}
    better, same = result(0.8, 0.2), result(0.5, 0.5)
    for linear in (at(48, better), at(32, better, "other images")):
        results = {"knn": at(32, same), "linear": linear, "baselines": at(32, {"chance": 0.1})}
        answer = judge(records, results, recipe)
        assert answer.verdict == "unclear" and "10.0% by guessing" in answer.sentence
        assert "(80.0%), which is of other images than kNN accuracy" in answer.sentence
        assert ("Not counted: linear accuracy at 48 px (80.0%)" in answer.sentence) == (
            linear == at(48, better)
        )
    alike = judge(records, {"knn": at(32, same), "linear": at(32, better)}, recipe)
    assert alike.verdict == "learning" and "Not counted" not in alike.sentence
    few = {"settings": at(32, {})["settings"] | {"train": 100}}  # other training images
    all_ = {"settings": few["settings"] | {"train": 1000}}
    answer = judge(records, {"knn": same | all_, "linear": better | few}, recipe)
    assert answer.verdict == "unclear" and "Not counted: linear accuracy" in answer.sentence
    # The size of training counts, and the baselines of another size do not.
    results = {"knn": at(48, same), "linear": at(32, better), "baselines": at(48, {"chance": 0.1})}
    answer = judge(records, results, recipe)
    assert answer.sentence.startswith("Learning: linear accuracy is 80.0%")
    assert (
        "Not counted: kNN accuracy at 48 px (50.0%)" in answer.sentence
        and "guessing" not in answer.sentence
    )
    only = judge(records, {"knn": at(48, better)}, recipe)
    assert only.sentence.startswith("Learning: kNN accuracy at 48 px is 80.0%")


def test_no_key_is_older_than_the_run():
    records = [record(step) for step in (2, 4, 6)]
    rows = {row.name: row for row in judge(records, {}, RECIPE).evidence}
    assert rows["age of the queue"].value.startswith("6 steps")


def test_one_odd_batch_does_not_decide():
    records = [record(10 * i) for i in range(1, 9)] + [record(90, effective_rank=1.2)]
    assert judge(records, {}, {}).verdict == "learning"


@pytest.mark.parametrize("loss", [None, float("nan"), float("inf")])
def test_a_last_loss_that_is_no_number_is_divergence(loss):
    answer = judge([record(10), record(20), record(30, loss=loss)], {}, {})
    assert answer.verdict == "unclear"
    assert "diverged" in answer.sentence


def test_a_method_with_negatives_needs_no_predictor():
    records = [record(10 * i, embedding_std=0.9) for i in range(1, 9)]
    mocov3 = {"method": {"name": "mocov3", "predictor": False}, "batch_size": 64}
    answer = judge(records, {}, mocov3)
    assert answer.verdict == "learning"
    assert "predictor" not in {row.name for row in answer.evidence}


def test_a_symmetric_loss_fills_the_queue_twice_as_fast():
    records = [record(10 * i) for i in range(1, 20)]
    recipe = RECIPE | {"method": RECIPE["method"] | {"symmetric": True}}
    rows = {row.name: row for row in judge(records, {}, recipe).evidence}
    assert rows["age of the queue"].value.startswith("12 steps (0.50 epochs)")


def test_dips_of_online_knn_are_evidence():
    measured = [(0.3, 0), (0.4, 0), (0.35, 1), (0.5, 1)]
    records = [
        record(10 * i, online_knn=accuracy, online_knn_dips=dips)
        for i, (accuracy, dips) in enumerate(measured, 1)
    ]
    rows = {row.name: row for row in judge([record(5), *records], {}, {}).evidence}
    assert rows["dips of online_knn"].value == "1 of 4 measurements"
    assert rows["dips of online_knn"].meaning.startswith("unstable")
    assert "dips of online_knn" not in {row.name for row in judge([record(5)], {}, {}).evidence}


def test_a_recipe_without_a_predictor_is_read():
    records = [record(10 * i, embedding_std=0.1, chance_loss=None) for i in range(1, 9)]
    byol = {"method": {"name": "byol", "predictor": False, "momentum": 0.99}, "batch_size": 64}
    answer = judge(records, {}, byol)
    assert answer.verdict == "collapsed"
    assert "predictor" in answer.sentence


def judge_simulated(rng, chance_of_right, n):
    """Judge kNN and linear of a trained and an untrained network, right by chance as given."""
    scores = []
    for name, (trained, untrained) in chance_of_right.items():
        right = [rng.random(n) < p for p in (trained, untrained)]
        gain = mean_interval(right[0].astype(float) - right[1])
        scores.append(
            LabeledScore(
                name=name,
                accuracy=float(right[0].mean()),
                untrained=float(right[1].mean()),
                gain_low=gain.low,
                gain_high=gain.high,
                images=n,
            )
        )
    return judge_evidence(RunEvidence(**HEALTHY | dict(labeled=tuple(scores), chance=0.1))).verdict


def test_random_labels_are_never_called_learning_and_six_points_nearly_always_are():
    rng = np.random.default_rng(0)
    gain = {"kNN": (0.27, 0.21)}
    for p in (0.1, 0.3):  # random labels of ten classes, and a network that did not change
        none = {"kNN": (p, p), "linear": (p, p)}
        assert "learning" not in {judge_simulated(rng, none, 400) for _ in range(100)}
    called = [judge_simulated(rng, gain, 4000) for _ in range(40)]
    assert called.count("learning") >= 38


def test_judging_needs_no_torch():
    code = "import sys, selfsight.runs.verdict; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_data_set_with_accuracies_of_both_networks_is_the_main_one():
    def settings(data):
        about = {"name": data, "fingerprint": data, "images": 10}
        return {"settings": {"data": data, "data_set": about}}

    gain = {"untrained": {"accuracy": {"low": 0.1, "high": 0.2}}}
    judged = {"accuracy": 0.5, "untrained_accuracy": 0.3, "differences": gain, "n": 100}
    one = {"small-1/knn": judged | settings("small")}
    others = {
        "large-2/svm": {"map": 0.9, "n": 900} | settings("trained_on"),
        "large-2/knn": {"accuracy": 0.9, "n": 900} | settings("trained_on"),
    }
    called, main = put_main_first(one | others, "trained_on")
    assert called["knn"] is one["small-1/knn"] and main == "small"
    evidence = gather_evidence([], one | others, {"data": {"path": "trained_on"}}, [])
    assert [score.name for score in evidence.labeled] == ["kNN accuracy on small"]
    # With the untrained network's accuracy, what it was trained on comes first again.
    complete = judged | {"n": 900} | settings("trained_on")
    assert put_main_first(one | {"large-2/knn": complete}, "trained_on")[1] == "trained_on"


def test_a_score_that_is_not_counted_needs_none_that_is():
    left_out = {"labeled": (), "not_counted": (score(0.3, 0.2),)}
    verdict = judge_evidence(RunEvidence(**HEALTHY | left_out))
    assert "Not counted: kNN accuracy (30.0%)" in verdict.sentence


@pytest.mark.parametrize(("classes", "rank"), [(2, 1.6), (3, 2.9), (10, 6.0)])
def test_few_classes_are_few_directions_and_no_collapse(classes, rank):
    """Features of each class become one point (neural collapse, arXiv:2008.08186)."""
    numbers = {"effective_rank": rank, "embedding_rank": rank, "trained_rank": rank}
    settings = HEALTHY | numbers | {"embedding_dim": None, "untrained_rank": 40.0} | knn(0.5, 0.49)
    with_labels = judge_evidence(RunEvidence(**settings, classes=classes))
    assert with_labels.verdict == "unclear"
    assert judge_evidence(RunEvidence(**settings)).verdict == "collapsed"  # without labels it is


def test_an_encoder_with_labels_that_gives_one_point_has_collapsed_and_no_predictor_is_advised():
    settings = HEALTHY | {"feature_std": 0.004, "chance_loss": None} | knn(0.2, 0.21)
    found = judge_evidence(RunEvidence(**settings, classes=3))
    assert found.verdict == "collapsed" and "check the labels" in found.sentence
    assert "predictor" not in found.sentence


@pytest.mark.parametrize("value", [[], "x", None, {"low": "x"}, {"low": 0.1}])
def test_an_interval_that_is_damaged_is_left_out(value):
    free = {"retrieval": {"trained": 0.5, "untrained": 0.2, "difference": value}, "settings": {}}
    evidence = gather_evidence([], {"label_free": free}, {}, [])
    assert evidence.retrieval == 0.5 and evidence.retrieval_gain is None
