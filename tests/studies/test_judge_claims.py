"""Verdicts: paired differences over seeds, and what one seed can decide."""

from dataclasses import asdict, replace

import numpy as np
import pytest
from scipy import stats

from selfsight import api
from selfsight.cli.main import main
from selfsight.errors import StoppedError, UserError
from selfsight.studies import STUDIES, Claim, run_study
from selfsight.studies.judge_claims import (
    NOT_MEASURED,
    SPREAD_OF_OTHERS,
    T_QUANTILES,
    ArmResult,
    Judgment,
    compare_with_ledger,
    judge,
    pooled_spread,
)
from selfsight.studies.result_tables import format_accuracy
from tests.studies.test_train_arms import entry_of, jobs_of

BETTER, OTHER, THIRD = "cifar10_v2_eqco_k16", "cifar10_v2_k16", "cifar10_v2_k4096"
CLAIM = Claim(text="EqCo helps.", better=BETTER, than=OTHER)


def result(arm: str, accuracies: dict[int, float], seconds: float = 100.0) -> ArmResult:
    (job,) = jobs_of(arm)
    entries = {
        seed: replace(
            entry_of(job),
            seed=seed,
            results={"linear": {"accuracy": a / 100, "low": a / 100, "high": a / 100}},
            seconds={"train": seconds, "total": seconds},
        )
        for seed, a in accuracies.items()
    }
    found = next(a for a in STUDIES["eqco_negatives"].arms if a.name == arm)
    return ArmResult(arm=found, recipe=job.recipe, entries=entries)


def judge_all(claim: Claim, results: list[ArmResult]) -> Judgment:
    """Judge a claim with a ledger of only these runs."""
    return judge(claim, results, [e for one in results for e in one.entries.values()])


@pytest.mark.parametrize(("published", "verdict"), [(68.0, "holds"), (69.5, "unclear")])
def test_a_published_number_is_compared_with_the_interval_over_seeds(published, verdict):
    claim = Claim(text="It is reached.", better=BETTER, than=published)
    assert judge_all(claim, [result(BETTER, {})]).verdict == "not run"
    older = judge_all(replace(claim, measure="knn_200"), [result(BETTER, {0: 70.0})])
    assert (older.verdict, older.reason) == ("not run", NOT_MEASURED)
    values = {0: 69.5, 1: 70.0, 2: 70.5}
    found = judge_all(claim, [result(BETTER, values)])
    expected = stats.ttest_1samp([*values.values()], published).confidence_interval(0.95)
    assert found.interval == pytest.approx(np.array(expected) - published, abs=1e-3)
    assert found.verdict == verdict
    one = result(BETTER, {0: 70.0})
    assert judge_all(claim, [one]).verdict == "unclear"  # no spread is known
    steady = result(THIRD, {0: 70.0, 1: 70.2, 2: 69.8})  # 0.2, of two degrees of freedom
    found = judge_all(claim, [one, steady])
    assert (found.verdict, found.seeds) == (verdict, 1) and found.interval is None


def test_the_small_scale_has_no_claims_about_published_numbers_or_times():
    text = {claim.text for study in STUDIES.values() for claim in study.claims_at("small")}
    assert "MoCo v2: at K = 16, EqCo is better than the plain loss." in text
    assert not any("published" in claim or "by the clock" in claim for claim in text)
    assert all(s.claims_at("cifar10") for s in STUDIES.values() if s.claims_at("small"))


def test_seeds_that_diverged_are_not_left_out_of_a_verdict():
    better = result(BETTER, {0: 70.0, 1: 70.0, 2: 70.1})
    for seed in (1, 2):
        better.entries[seed] = replace(
            better.entries[seed], results={}, diverged="the loss is not finite"
        )
    other = result(OTHER, {0: 60.0, 1: 60.2, 2: 60.1})
    backwards = replace(CLAIM, better=OTHER, than=BETTER)
    for claim in (CLAIM, backwards, replace(CLAIM, than=60.0)):
        found = judge_all(claim, [better, other])
        assert found.verdict == "unclear"
        assert found.reason == f"2 of 3 seeds of {BETTER} diverged"
    assert format_accuracy(better, "linear") == "70.0 [70.0, 70.0], 2 of 3 diverged"


def test_the_quantiles_are_those_of_student():
    expected = stats.t.ppf(0.975, range(1, len(T_QUANTILES) + 1))
    assert list(T_QUANTILES) == pytest.approx(expected, abs=1e-3)


def test_the_interval_is_that_of_a_paired_t_test():
    better, other = {0: 71.0, 1: 73.5, 2: 70.0}, {0: 70.0, 1: 71.5, 2: 69.5, 3: 99.0}
    found = judge_all(CLAIM, [result(BETTER, better), result(OTHER, other)])
    pairs = [[values[seed] for seed in range(3)] for values in (better, other)]
    low, high = stats.ttest_rel(*pairs).confidence_interval(0.95)
    assert found.interval == pytest.approx((low, high), abs=1e-3)
    assert found.difference == pytest.approx(7 / 6) and found.seeds == 3


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [((2.0, 2.2, 1.9), "holds"), ((-2.0, -2.2, -1.9), "does not hold"), ((2, -1, 0.5), "unclear")],
)
def test_three_seeds_decide_if_they_agree(differences, verdict):
    other = {0: 70.0, 1: 71.0, 2: 69.0}
    better = {seed: other[seed] + d for seed, d in enumerate(differences)}
    assert judge_all(CLAIM, [result(BETTER, better), result(OTHER, other)]).verdict == verdict


def test_a_margin_moves_what_counts_as_better():
    other = {0: 70.0, 1: 71.0, 2: 69.0}
    better = {0: 69.6, 1: 70.5, 2: 68.7}  # about 0.4 worse
    results = [result(BETTER, better), result(OTHER, other)]
    assert judge_all(CLAIM, results).verdict == "does not hold"
    assert judge_all(replace(CLAIM, margin=-1.0), results).verdict == "holds"


def test_one_seed_decides_only_a_difference_of_several_spreads():
    arms = [result(BETTER, {0: 72.0}), result(OTHER, {0: 70.0})]
    assert judge_all(CLAIM, arms).verdict == "unclear"  # no spread is known
    # 0.2 is known from three seeds: 2 is above Student's 4.3 x 0.2 x sqrt(2).
    steady = result(THIRD, {0: 70.0, 1: 70.2, 2: 69.8})
    assert judge_all(CLAIM, [*arms, steady]).verdict == "holds"
    two = result(THIRD, {0: 70.0, 1: 70.28})  # 0.2 from two seeds is hardly known
    assert judge_all(CLAIM, [*arms, two]).verdict == "unclear"
    equal = result(THIRD, {0: 10.0, 1: 10.0})  # collapsed: no spread
    assert judge_all(CLAIM, [*arms, equal]).verdict == "unclear"
    wild = result(THIRD, {0: 70.0, 1: 71.0, 2: 69.0})
    assert judge_all(CLAIM, [*arms, wild]).verdict == "unclear"
    groups = [list(one.values("linear").values()) for one in (steady, equal, two, arms[0])]
    assert pooled_spread(groups[:1])[:2] == pytest.approx((0.2, 2))
    assert pooled_spread(groups).freedom == 4
    assert pooled_spread(groups[1:2]) is None


@pytest.mark.parametrize(
    ("than", "gain", "margin", "verdict"),
    [
        (OTHER, 2.9, 0.0, "holds"),  # four times 0.5, times sqrt(2), is 2.83
        (OTHER, 2.7, 0.0, "unclear"),
        (OTHER, -2.9, 0.0, "does not hold"),
        (OTHER, 1.9, -1.0, "holds"),
        (OTHER, 3.5, 1.0, "unclear"),
        (70.0, 2.1, 0.0, "holds"),  # a published number does not vary
        (70.0, 1.9, 0.0, "unclear"),
        (70.0, 1.1, -1.0, "holds"),
    ],
)
def test_one_seed_needs_four_spreads_of_one_arm_or_of_the_difference_of_two(
    than, gain, margin, verdict
):
    step = 0.5 * 0.9**0.5  # ten numbers this far above and below their mean have a spread of 0.5
    steady = result(THIRD, {seed: 60 + step * (-1) ** seed for seed in range(10)})
    arms = [result(BETTER, {0: 70.0 + gain}), result(OTHER, {0: 70.0}), steady]
    assert judge_all(replace(CLAIM, than=than, margin=margin), arms).verdict == verdict


def test_a_margin_counts_for_the_interval_of_a_published_number_too():
    better = [result(BETTER, {0: 69.6, 1: 69.7, 2: 69.5})]
    for margin, verdict in ((0.0, "does not hold"), (-1.0, "holds"), (-0.4, "unclear")):
        assert judge_all(replace(CLAIM, than=70.0, margin=margin), better).verdict == verdict


@pytest.mark.parametrize(
    ("setting", "decides"),
    [
        ({}, True),
        ({"scale": "imagenette"}, False),
        ({"scored_on": "held-out"}, False),
        ({"quick": True}, False),
        ({"diverged": "the loss is not finite"}, False),
        ({"epochs": 100}, False),
        ({"network": "resnet50"}, False),
        ({"images": {"train": 500, "test": 100}}, False),
        ({"method": {"name": "supervised"}}, False),
    ],
)
def test_a_study_without_a_spread_has_that_of_other_studies_in_its_setting(setting, decides):
    arms = [result(BETTER, {0: 72.0}), result(OTHER, {0: 70.0})]
    ledger = [entry for one in arms for entry in one.entries.values()]
    elsewhere = result(THIRD, {0: 80.0, 1: 80.2, 2: 79.8})
    for entry in elsewhere.entries.values():
        recipe = dict(entry.recipe)
        recipe |= {name: setting[name] for name in ("epochs", "method") if name in setting}
        recipe["backbone"] = recipe["backbone"] | {"name": setting.get("network", entry.network)}
        changes = {k: v for k, v in setting.items() if k not in ("epochs", "method", "network")}
        ledger.append(replace(entry, study="another", recipe=recipe, **changes))
    found = judge(CLAIM, arms, ledger)
    assert found.verdict == ("holds" if decides else "unclear")
    assert (found.reason == SPREAD_OF_OTHERS) is decides
    timed = judge(replace(CLAIM, than=(OTHER,)), arms, ledger)
    assert timed.reason.startswith(f"against {OTHER}")
    assert timed.reason.endswith(SPREAD_OF_OTHERS) is decides
    published = judge(replace(CLAIM, than=70.0), arms, ledger)
    assert published.verdict == ("holds" if decides else "unclear")


def with_dips(arm: str, counts: dict[int, float | None]) -> ArmResult:
    """An arm whose curves end with these numbers of dips."""
    found = result(arm, dict.fromkeys(counts, 70.0))
    entries = {
        seed: replace(entry, curve={"online_knn_dips": [0.0, counts[seed]]})
        for seed, entry in found.entries.items()
    }
    return replace(found, entries=entries)


@pytest.mark.parametrize(
    ("better", "other", "verdict"),
    [
        ((0, 1, 0), (5, 6, 6), "holds"),
        ((5, 6, 6), (0, 1, 0), "does not hold"),
        ((0, 0, 0), (0, 0, 0), "unclear"),
        ((0, 0, 0), (1, 1, 1), "unclear"),  # whole numbers: equal differences can be rounding
        ((0,), (9,), "unclear"),
    ],
)
def test_fewer_dips_are_better(better, other, verdict):
    claim = replace(CLAIM, measure="dips")
    steady = with_dips(THIRD, {0: 0.0, 1: 0.0, 2: 0.0, 3: 1.0})
    named = ((BETTER, better), (OTHER, other))
    arms = [with_dips(arm, dict(enumerate(map(float, dips)))) for arm, dips in named]
    found = judge_all(claim, [*arms, steady])
    assert found.verdict == verdict and found.seeds == len(better)
    assert found.difference == pytest.approx(np.mean(other) - np.mean(better))


def test_less_variance_within_an_image_is_better():
    claim = replace(CLAIM, measure="view_variance")
    arms = []
    for name, values in ((BETTER, (0.20, 0.21, 0.22)), (OTHER, (0.30, 0.31, 0.33))):
        arm = result(name, dict.fromkeys(range(3), 70.0))
        arms.append(arm)
        for seed, value in enumerate(values):
            label_free = {"view_variance": value}
            arm.entries[seed] = replace(arm.entries[seed], label_free=label_free)
    found = judge_all(claim, arms)
    assert found.verdict == "holds" and found.difference == pytest.approx(31 / 3)
    unmeasured = result(OTHER, {0: 70.0})
    found = judge_all(claim, [arms[0], unmeasured])
    assert found.verdict == "not run" and "before it was measured" in found.reason


def test_a_run_that_diverged_or_was_not_measured_has_no_dips():
    arm = with_dips(OTHER, {0: 2.0, 1: 1.0, 2: None})
    arm.entries[1] = replace(arm.entries[1], diverged="the loss is not finite")
    arm.entries[3] = replace(arm.entries[0], seed=3, curve={})
    assert arm.values("dips") == {0: 2.0} and arm.mean("dips") == 2.0


def test_what_was_not_run_says_so():
    arms = [result(BETTER, {0: 72.0}), result(OTHER, {})]
    assert judge_all(CLAIM, arms).verdict == "not run"


def test_at_equal_time_the_fastest_of_those_that_took_as_long_is_compared():
    claim = replace(CLAIM, than=(OTHER, THIRD, "cifar10_v2_k256"))
    better = result(BETTER, {0: 72.0, 1: 72.1, 2: 72.2}, seconds=100.0)
    shorter = result(OTHER, {0: 60.0, 1: 60.1, 2: 60.2}, seconds=90.0)
    longer = result(THIRD, {0: 73.0, 1: 73.2, 2: 73.3}, seconds=110.0)
    longest = result("cifar10_v2_k256", {0: 70.0, 1: 70.2, 2: 70.3}, seconds=300.0)
    found = judge_all(claim, [better, shorter, longer, longest])
    assert found.verdict == "does not hold" and THIRD in found.reason
    assert judge_all(claim, [better, shorter, result(THIRD, {}), longest]).verdict == "holds"
    absent = [result(THIRD, {}), result("cifar10_v2_k256", {})]
    found = judge_all(claim, [better, shorter, *absent])
    assert found.verdict == "unclear" and "took as long" in found.reason
    assert judge_all(claim, [better, result(OTHER, {}), *absent]).verdict == "not run"


def test_the_time_of_training_is_that_of_finished_runs_without_what_comes_before_and_after():
    arm = result(OTHER, {0: 70.0, 1: 70.0, 2: 70.0})
    for seed, train in ((0, 100.0), (1, 110.0), (2, 5.0)):
        seconds = {"train": train, "total": train + 30.0, "startup": 20.0}
        arm.entries[seed] = replace(arm.entries[seed], seconds=seconds)
    arm.entries[2] = replace(arm.entries[2], results={}, diverged="the loss is not finite")
    assert (arm.seconds(), arm.seconds_in_all()) == (105.0, 155.0)


def test_the_time_on_a_shared_gpu_is_in_proportion_to_the_nearest_run_that_is_otherwise_equal():
    claim = replace(CLAIM, than=(OTHER,))
    better = result(BETTER, {0: 72.0, 1: 72.1, 2: 72.2}, seconds=100.0)
    shared = result(OTHER, {0: 60.0, 1: 60.1, 2: 60.2})
    for seed, entry in shared.entries.items():
        shared.entries[seed] = replace(entry, other_memory_gib=8.0)

    def alone(share: float, seconds: float) -> ArmResult:
        """The same arm with a share of its epochs, under another name."""
        recipe = replace(shared.recipe, epochs=round(share * shared.recipe.epochs))
        return replace(result(THIRD, {0: 50.0}, seconds=seconds), recipe=recipe)

    other_method = result("cifar10_v2_k256", {0: 50.0}, seconds=101.0)
    for half, double, longer in ((51.0, 180.0, True), (49.0, 220.0, False)):
        timed = alone(0.5, half), alone(2.0, double), other_method
        found = judge_all(claim, [better, shared, *timed])
        assert found.verdict == ("holds" if longer else "unclear")


def test_at_equal_time_a_shared_gpu_counts_in_proportion_to_the_epochs_of_a_run_alone():
    claim = replace(CLAIM, than=(OTHER, THIRD))
    better = result(BETTER, {0: 72.0, 1: 72.1, 2: 72.2}, seconds=100.0)
    alone = result(OTHER, {0: 60.0, 1: 60.1, 2: 60.2}, seconds=90.0)
    for more, chosen in ((1.2, THIRD), (1.1, None)):  # 108 s and 99 s
        recipe = replace(alone.recipe, epochs=round(more * alone.recipe.epochs))
        shared = replace(result(THIRD, {0: 71.0, 1: 71.2, 2: 71.0}), recipe=recipe)
        for seed, entry in shared.entries.items():
            shared.entries[seed] = replace(entry, other_memory_gib=8.0)
        assert shared.seconds() is None
        found = judge_all(claim, [better, alone, shared])
        assert found.verdict == ("holds" if chosen else "unclear"), found
        assert chosen is None or chosen in found.reason


def test_another_run_is_expected_within_the_prediction_interval_of_the_seeds():
    values = [70.0, 71.0, 69.5]
    arm = result(OTHER, dict(enumerate(values)))
    (row,) = compare_with_ledger(result(OTHER, {3: 70.0}).entries[3], arm, [arm], [])
    low, high = stats.t.interval(
        0.95, 2, loc=np.mean(values), scale=np.std(values, ddof=1) * (1 + 1 / 3) ** 0.5
    )
    assert (row.mean - row.tolerance, row.mean + row.tolerance) == pytest.approx(
        (low, high), abs=1e-3
    )


def test_one_seed_has_the_spread_of_the_other_arms_or_of_the_test_images():
    arm, steady = result(OTHER, {0: 70.0}), result(THIRD, {0: 70.0, 1: 70.2, 2: 69.8})
    new = result(OTHER, {1: 71.0}).entries[1]
    (row,) = compare_with_ledger(new, arm, [arm, steady], [])
    assert row.tolerance == pytest.approx(T_QUANTILES[1] * 0.2 * 2**0.5) and row.passed
    (row,) = compare_with_ledger(result(OTHER, {1: 71.5}).entries[1], arm, [arm, steady], [])
    assert not row.passed
    wide = {"linear": {"accuracy": 0.7, "low": 0.68, "high": 0.72}}  # about 2,000 test images
    alone = replace(arm, entries={0: replace(arm.entries[0], results=wide)})
    (row,) = compare_with_ledger(new, alone, [alone], [])
    assert row.passed and row.tolerance == pytest.approx(T_QUANTILES[-1] * 2 / 1.96 * 2**0.5)


def test_each_accuracy_of_a_reproduction_is_compared_and_may_be_too_high_or_too_low():
    arm, (job,) = result(OTHER, {0: 70.0, 1: 70.2, 2: 69.8}), jobs_of(OTHER)
    new = dict(zip(("knn", "knn_200", "linear"), (70.9, 71.1, 68.9), strict=True))
    for entry in arm.entries.values():
        entry.results.update(dict.fromkeys(new, entry.results["linear"]))
    results = {k: {"accuracy": v / 100, "low": 0.0, "high": 1.0} for k, v in new.items()}
    again = replace(entry_of(job), seed=3, results=results)
    rows = compare_with_ledger(again, arm, [arm], [])
    # Student's 4.303 times 0.2 sqrt(4 / 3) is 0.99.
    assert [(row.measure, row.passed) for row in rows] == [
        *(("knn", True), ("knn_200", False), ("linear", False))
    ]


@pytest.mark.parametrize(("accuracy", "status"), [(70.3, 0), (75.0, 1)])
def test_reproduce_says_pass_or_fail_with_the_difference(
    accuracy, status, monkeypatch, tmp_path, capsys
):
    arm = result(OTHER, {0: 70.0, 1: 70.2, 2: 69.8})
    for entry in arm.entries.values():
        entry.write(tmp_path)
    again = result(OTHER, {0: accuracy}).entries[0]
    monkeypatch.setattr(run_study, "RESULTS", tmp_path)
    monkeypatch.setattr(run_study, "_train_missing", lambda *_, **__: [asdict(again)])
    name = f"eqco_negatives.{OTHER}"
    command = ["reproduce", name]
    if status:
        with pytest.raises(SystemExit, match="1"):
            main(command)
    else:
        main(command)
    printed = capsys.readouterr().out
    assert printed.startswith("FAIL" if status else "pass") and "expected within ±" in printed
    assert f"(difference {accuracy - 70:+.2f})" in printed


def test_reproduce_needs_a_result_to_compare_with(monkeypatch, tmp_path):
    monkeypatch.setattr(run_study, "RESULTS", tmp_path)
    with pytest.raises(UserError, match=r"no result of methods.simclr .* Train it first"):
        api.reproduce("methods.simclr")
    with pytest.raises(UserError, match=r'no arm "methods.simclrs"'):
        api.reproduce("methods.simclrs")


def test_an_arm_that_is_stopped_while_it_is_reproduced_starts_over(monkeypatch, tmp_path):
    for entry in result(OTHER, {0: 70.0, 1: 70.2}).entries.values():
        entry.write(tmp_path)
    monkeypatch.setattr(run_study, "RESULTS", tmp_path)

    def stop(*_, **__):
        raise StoppedError("Repeat the command to continue it.", 2)

    monkeypatch.setattr(run_study, "_train_missing", stop)
    with pytest.raises(StoppedError, match=r"^Stopped while .* start over\.$") as stopped:
        api.reproduce(f"eqco_negatives.{OTHER}", device="cpu", quiet=True)
    assert stopped.value.signal_number == 2


def test_reproduce_trains_the_small_version_of_an_arm(monkeypatch, tmp_path, capsys):
    name = f"eqco_negatives.{OTHER}"
    (job,) = jobs_of(OTHER, scale="small")
    small = replace(entry_of(job), results={"linear": {"accuracy": 0.4, "low": 0.4, "high": 0.4}})
    for seed in (0, 1, 2):
        replace(small, seed=seed).write(tmp_path)
    monkeypatch.setattr(run_study, "RESULTS", tmp_path)
    trained = []
    monkeypatch.setattr(
        run_study, "_train_missing", lambda _, o, *a, **k: trained.append(o) or [asdict(small)]
    )
    with pytest.raises(UserError, match=rf"no result of {name} .* --scale cifar10"):
        api.reproduce(name)
    main(["reproduce", name, "--scale", "small"])
    assert trained[0].scale == "small" and "pass" in capsys.readouterr().out
    with pytest.raises(UserError, match=rf"has no arm .{OTHER}. at the scale imagenette"):
        api.reproduce(name, scale="imagenette")
