"""Judge a claim from the ledger: a paired difference against the spread over seeds."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from selfsight.recipe import Recipe
from selfsight.studies.ledger import Entry, find_entries
from selfsight.studies.study_types import LESS_IS_BETTER, Arm, Claim, Measure, Study

Verdict = Literal["holds", "does not hold", "unclear", "not run"]

# 97.5 % quantiles of Student's t with 1, 2, ... degrees of freedom.
T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
MANY_SPREADS = 4.0  # one seed decides if the difference is so many times the spread of one
SPREAD_OF_OTHERS = "one seed, by the spread of other studies with this network and epochs"
NOT_MEASURED = "these runs were trained before it was measured"
ROUNDING_SPREAD = (1 / 6) ** 0.5  # of the difference of two whole numbers: 1 / 12 for each


@dataclass(frozen=True, kw_only=True)
class ArmResult:
    """An arm and its entries by seed, scored on the test images."""

    arm: Arm
    recipe: Recipe
    entries: dict[int, Entry]

    @property
    def num_diverged(self) -> int:
        """Number of seeds whose training diverged."""
        return sum(bool(entry.diverged) for entry in self.entries.values())

    def values(self, measure: Measure) -> dict[int, float]:
        """Accuracy or view variance in percent, or number of dips, by seed that did not diverge."""
        found = {seed: measured_value(e, measure) for seed, e in sorted(self.entries.items())}
        return {seed: value for seed, value in found.items() if value is not None}

    def mean(self, measure: Measure) -> float | None:
        """Mean over seeds; None if it was not run."""
        values = list(self.values(measure).values())
        return statistics.fmean(values) if values else None

    def spread(self, measure: Measure) -> float | None:
        """Standard deviation over seeds; None for fewer than two."""
        values = list(self.values(measure).values())
        return statistics.stdev(values) if len(values) > 1 else None

    def seconds(self) -> float | None:
        """Mean wall clock of training, without compiling and evaluating.

        None if it was not run, or only on a GPU that others used too.
        """
        times = [entry.seconds["train"] for entry in self.alone()]
        return statistics.fmean(times) if times else None

    def seconds_in_all(self) -> float | None:
        """Mean wall clock from the start of the process to the last result; None as above."""
        times = [e.seconds["total"] + e.seconds.get("startup", 0.0) for e in self.alone()]
        return statistics.fmean(times) if times else None

    def alone(self) -> list[Entry]:
        """The runs whose times count: finished, and alone on their GPU."""
        return [e for e in self.entries.values() if e.results and not e.shared_gpu]


def measured_value(entry: Entry, measure: Measure) -> float | None:
    """Accuracy or view variance in percent, or number of dips, of a run that did not diverge."""
    if entry.diverged:
        return None
    if measure == "dips":
        counts = entry.curve.get("online_knn_dips")
        return counts[-1] if counts else None
    if measure == "view_variance":
        variance = entry.label_free.get(measure)
        return None if variance is None else 100 * variance
    return entry.accuracy(measure)


class Judgment(NamedTuple):
    """The verdict on a claim, and the difference in points or dips that it is based on."""

    verdict: Verdict
    difference: float | None = None
    """Of the two arms, the mean over the seeds that both have; positive: the first is better."""
    interval: tuple[float, float] | None = None
    """95 % interval of the difference over seeds; None for one seed."""
    seeds: int = 0
    reason: str = ""


def arm_results(study: Study, scale: str, entries: Sequence[Entry]) -> list[ArmResult]:
    """The arms of a study on one data set, each with its entries."""
    results = []
    for arm in study.arms_at(scale):
        recipe = arm.build()
        found = find_entries(entries, recipe, scale=scale)
        results.append(ArmResult(arm=arm, recipe=recipe, entries=found))
    return results


class Spread(NamedTuple):
    """Standard deviation over seeds, and the degrees of freedom that it is known with."""

    deviation: float
    freedom: int
    note: str = ""
    """Of which runs, if not of those that are judged."""

    @property
    def quantile(self) -> float:
        """97.5 % quantile of Student's t."""
        return T_QUANTILES[min(self.freedom, len(T_QUANTILES)) - 1]


def spread_of(values: Sequence[float]) -> Spread:
    """The spread of two numbers or more."""
    return Spread(statistics.stdev(values), len(values) - 1)


def pooled_spread(groups: Iterable[Sequence[float]]) -> Spread | None:
    """Spread within groups; None if none has two numbers that differ."""
    squares, freedom = 0.0, 0
    for values in groups:
        if len(values) > 1:
            squares += statistics.variance(values) * (len(values) - 1)
            freedom += len(values) - 1
    return Spread((squares / freedom) ** 0.5, freedom) if squares else None


def find_spread(
    result: ArmResult, results: Sequence[ArmResult], entries: Iterable[Entry], measure: Measure
) -> Spread | None:
    """Spread over seeds of the study's arms, by which one seed is judged; None if it is not known.

    If they have none, that of all arms with the same images, network and epochs, of any study.
    """
    if own := pooled_spread([list(one.values(measure).values()) for one in results]):
        return own
    groups = defaultdict[Recipe, dict[int, float]](dict)
    for entry in entries:
        if (trained := entry.trained) is None or not _is_alike(entry, trained, result):
            continue
        if (value := measured_value(entry, measure)) is not None:
            groups[trained][entry.seed] = value
    others = pooled_spread([list(values.values()) for values in groups.values()])
    return others and others._replace(note=SPREAD_OF_OTHERS)


def _is_alike(entry: Entry, trained: Recipe, result: ArmResult) -> bool:
    """Whether an entry has the data set, images, network and epochs of an arm, and no labels."""
    wanted, images = result.recipe, [own.images["train"] for own in result.entries.values()]
    return (
        (entry.scale, entry.scored_on, entry.quick) == (result.arm.scale, "test", False)
        and (entry.network, entry.epochs) == (wanted.backbone.name, wanted.epochs)
        and entry.images["train"] in images
        and not trained.method.needs_labels
    )


def judge(claim: Claim, results: Sequence[ArmResult], entries: Sequence[Entry]) -> Judgment:
    """Judge a claim by the results of its study on one data set.

    `entries` are the whole ledger, by whose spread one seed is judged if its study has none.
    """
    by_name = {result.arm.name: result for result in results}
    better = by_name[claim.better]
    if isinstance(claim.than, float):
        return _judge_published(claim, better, results, entries)
    others = [by_name[name] for name in claim.others]
    if not better.entries or not any(other.entries for other in others):
        return Judgment("not run")
    other = _choose_other(claim, better, others, results)
    if other is None:
        return Judgment("unclear", reason="no run that was alone on its GPU took as long")
    if reason := _describe_diverged(better, other):
        return Judgment("unclear", reason=reason)
    dips = claim.measure == "dips"
    pairs = [better.values(claim.measure), other.values(claim.measure)]
    seeds = sorted(pairs[0].keys() & pairs[1].keys())
    if not all(pairs):
        return Judgment("not run", reason=NOT_MEASURED)
    if not seeds:
        return Judgment("unclear", reason="the two arms share no seed that was trained to the end")
    sign = -1 if claim.measure in LESS_IS_BETTER else 1
    differences = [sign * (pairs[0][seed] - pairs[1][seed]) for seed in seeds]
    mean = statistics.fmean(differences)
    named = f"against {other.arm.name}" if not isinstance(claim.than, str) else ""
    if len(seeds) == 1:
        # Arms without dips have no spread, which says nothing about the others.
        known = None if dips else find_spread(better, results, entries, claim.measure)
        both = known and known._replace(deviation=known.deviation * 2**0.5)  # both arms vary
        return _judge_one_seed(claim, mean, both, named)
    spread = spread_of(differences)
    half = spread.quantile * max(spread.deviation, ROUNDING_SPREAD if dips else 0.0)
    half /= len(seeds) ** 0.5
    verdict = _compare(mean - half, mean + half, claim.margin)
    return Judgment(verdict, mean, (mean - half, mean + half), len(seeds), named)


def _judge_published(
    claim: Claim, result: ArmResult, results: Sequence[ArmResult], entries: Sequence[Entry]
) -> Judgment:
    """Compare with a published number: by the interval over seeds, or the spread of other arms."""
    values = list(result.values(claim.measure).values())
    if not result.entries:
        return Judgment("not run")
    if reason := _describe_diverged(result):
        return Judgment("unclear", reason=reason)
    if not values:
        return Judgment("not run", reason=NOT_MEASURED)
    assert isinstance(claim.than, float)
    mean = statistics.fmean(values) - claim.than
    if len(values) == 1:
        known = find_spread(result, results, entries, claim.measure)
        return _judge_one_seed(claim, mean, known, "")
    spread = spread_of(values)
    half = spread.quantile * spread.deviation / len(values) ** 0.5
    interval = (mean - half, mean + half)
    return Judgment(_compare(*interval, claim.margin), mean, interval, len(values))


def _judge_one_seed(claim: Claim, mean: float, spread: Spread | None, named: str) -> Judgment:
    """One seed decides only if the difference is several times the spread over seeds.

    How many times depends on how well that is known: with two or three seeds, hardly.
    """
    if spread is None:
        return Judgment("unclear", mean, None, 1, named or "one seed, and no spread is known")
    half = max(MANY_SPREADS, spread.quantile) * spread.deviation
    verdict = _compare(mean - half, mean + half, claim.margin)
    return Judgment(verdict, mean, None, 1, "; ".join(filter(None, (named, spread.note))))


def _describe_diverged(*results: ArmResult) -> str:
    """Which arms have seeds that diverged, and how many; empty if none has."""
    parts = []
    for result in results:
        if count := result.num_diverged:
            parts.append(f"{count} of {len(result.entries)} seeds of {result.arm.name} diverged")
    return "; ".join(parts)


def _compare(low: float, high: float, margin: float) -> Verdict:
    if low > margin:
        return "holds"
    return "does not hold" if high < margin else "unclear"


def _choose_other(
    claim: Claim, better: ArmResult, others: Sequence[ArmResult], results: Sequence[ArmResult]
) -> ArmResult | None:
    """The arm to compare with: the fastest of several that takes at least as long."""
    if isinstance(claim.than, str):
        return others[0]
    seconds = _training_seconds(better, results)
    run = [other for other in others if other.entries]
    timed = [(spent, other) for other in run if (spent := _training_seconds(other, results))]
    longer = [(spent, other) for spent, other in timed if seconds and spent >= seconds]
    return min(longer, key=lambda pair: pair[0])[1] if longer else None


def _training_seconds(result: ArmResult, results: Sequence[ArmResult]) -> float | None:
    """Wall clock of training alone on a GPU: measured, or in proportion to other epochs.

    An arm that shared its GPU takes the time per epoch of the nearest one that differs in nothing
    but epochs.
    """
    if (own := result.seconds()) is not None:
        return own
    epochs = result.recipe.epochs
    timed = [
        (abs(one.recipe.epochs - epochs), spent * epochs / one.recipe.epochs)
        for one in results
        if replace(one.recipe, epochs=epochs) == result.recipe and (spent := one.seconds())
    ]
    return min(timed)[1] if timed else None


class Reproduction(NamedTuple):
    """A run of an arm compared with the ledger: one measure."""

    measure: Measure
    accuracy: float
    mean: float
    tolerance: float
    """Half the 95 % interval in which another run is expected."""

    @property
    def passed(self) -> bool:
        """Whether the run agrees with the ledger."""
        return abs(self.accuracy - self.mean) <= self.tolerance


def compare_with_ledger(
    entry: Entry, result: ArmResult, results: Sequence[ArmResult], entries: Sequence[Entry]
) -> list[Reproduction]:
    """Compare a new run of an arm with its entries.

    Another run is expected within Student's prediction interval of several seeds. For one seed, the
    spread is that of other arms, or if there is none, the error over test images.
    """
    compared = []
    measures: tuple[Measure, ...] = ("knn", "knn_200", "linear")
    for measure in measures:
        values = list(result.values(measure).values())
        accuracy, mean = entry.accuracy(measure), result.mean(measure)
        if accuracy is None or mean is None:
            continue
        if len(values) > 1:
            spread = spread_of(values)
        else:
            known = find_spread(result, results, entries, measure)
            spread = known or _image_spread(result, measure)
        tolerance = spread.quantile * spread.deviation * (1 + 1 / len(values)) ** 0.5
        compared.append(Reproduction(measure, accuracy, mean, tolerance))
    return compared


def _image_spread(result: ArmResult, measure: Measure) -> Spread:
    """Standard error of an accuracy over test images, from its 95 % interval."""
    found = next(e.results[measure] for e in result.entries.values() if measure in e.results)
    return Spread(100 * (found["high"] - found["low"]) / (2 * 1.96), len(T_QUANTILES))
