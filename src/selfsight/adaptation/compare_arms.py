"""Choose an arm by paired differences on the same images, and describe the choice in a sentence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from selfsight.evals.bootstrap_intervals import Interval
from selfsight.evals.encoder_differences import Difference, paired_differences
from selfsight.evals.prediction_scores import PerImage, Scores, named_interval

ArmName = Literal["frozen", "continued", "scratch"]
ARMS: tuple[ArmName, ...] = ("frozen", "continued", "scratch")  # the simplest first
WORDS = {
    "frozen": "the frozen encoder",
    "continued": "continued pretraining",
    "scratch": "training from scratch",
}
NUMBERS = {"linear": "accuracy", "knn": "accuracy"}  # of a measure; its own name if not here
TITLES = {
    "linear": "linear accuracy",
    "knn": "kNN accuracy",
    "retrieval": "same-image retrieval",
    "effective_rank": "effective rank",
}


@dataclass(frozen=True, kw_only=True)
class ArmResult:
    """The numbers of an arm by measure, or the reason why it has none."""

    name: ArmName
    scores: Mapping[str, Scores] = field(default_factory=dict)
    note: str = ""  # such as why it was not tried
    facts: Mapping[str, Any] = field(default_factory=dict)  # epochs, seconds, folder

    def interval(self, measure: str) -> Interval | None:
        """A number with its interval; None if the arm was not measured."""
        numbers = self.scores.get(measure)
        return None if numbers is None else named_interval(numbers, NUMBERS.get(measure, measure))

    def per_image(self, measure: str) -> PerImage:
        """The outcome for each image."""
        return self.scores[measure]["per_image"]


class Choice(NamedTuple):
    """The chosen arm, the arms that are measurably worse than the frozen encoder, a sentence."""

    name: ArmName
    worse: tuple[ArmName, ...]
    sentence: str


def compare(arm: ArmResult, other: ArmResult, measure: str) -> Difference:
    """The difference of two measured arms on the same images."""
    found = paired_differences(arm.per_image(measure), other.per_image(measure))
    return found[NUMBERS.get(measure, measure)]


def choose(arms: Sequence[ArmResult], *, images: str) -> Choice:
    """Choose an arm; the first one is the frozen encoder, and `images` describes the test images.

    With labels, choose the simplest arm within one standard error of the best linear accuracy (the
    one-standard-error rule of Breiman et al. 1984), where the frozen encoder is simplest; never an
    arm below the frozen encoder. Without labels, choose the frozen encoder, unless an arm is
    measurably better in every measure.
    """
    frozen, *trained = [arm for arm in arms if arm.scores]
    measures = ["linear"] if "linear" in frozen.scores else list(frozen.scores)
    against = {arm.name: [compare(arm, frozen, m) for m in measures] for arm in trained}
    worse = tuple(name for name, found in against.items() if all(d.high < 0 for d in found))
    chosen = frozen
    if measures == ["linear"]:
        best = max([frozen, *trained], key=lambda arm: _value(arm, "linear"))
        above = [arm for arm in trained if _value(arm, "linear") > _value(frozen, "linear")]
        chosen = next(arm for arm in (frozen, *above) if _is_close(arm, best))
    else:
        better = [arm for arm in trained if all(d.low > 0 for d in against[arm.name])]
        chosen = better[0] if better else frozen
    sentence = _describe(chosen, frozen, trained, measures, images)
    return Choice(chosen.name, worse, sentence)


def _value(arm: ArmResult, measure: str) -> float:
    found = arm.interval(measure)
    assert found is not None
    return found.value


def _is_close(arm: ArmResult, best: ArmResult) -> bool:
    """Whether an arm is the best one, or within one standard error of it.

    The standard error is McNemar's: if both arms were equally good, each image on which they differ
    would favor either with the same probability.
    """
    accuracies = (each.per_image("linear").values["accuracy"] for each in (best, arm))
    difference = np.subtract(*accuracies)
    return bool(difference.sum() <= np.sqrt(np.square(difference).sum()))


def _describe(
    chosen: ArmResult,
    frozen: ArmResult,
    trained: Sequence[ArmResult],
    measures: Sequence[str],
    images: str,
) -> str:
    """Describe the choice and the numbers of every arm."""
    labeled = measures == ["linear"]
    if chosen is frozen:
        advice = "Do not train: use the frozen one"
        if not trained:
            return f"{advice}: nothing else was tried."
    else:
        certain = all(compare(chosen, frozen, m).low > 0 for m in measures)
        advice = f"Use {WORDS[chosen.name]}" + ("" if certain else ", which is probably better")
    parts = [
        f"{TITLES[m]} {format_number(m, _value(frozen, m))} frozen, "
        + ", ".join(_describe_arm(arm, frozen, m) for arm in trained)
        for m in measures
    ]
    text = f"{advice}. On {images}: {'; '.join(parts)}."
    if not labeled:
        text += " Without labels this is weak evidence. Add --labeled with some images per class."
    return text


def _describe_arm(arm: ArmResult, frozen: ArmResult, measure: str) -> str:
    difference = compare(arm, frozen, measure)
    scale = 1 if measure == "effective_rank" else 100
    change, low, high = (f"{scale * x:+.1f}" for x in difference[:3])
    word = {"continued": "continued", "scratch": "from scratch"}[arm.name]
    value = format_number(measure, _value(arm, measure))
    return f"{value} {word} ({change}, 95 % interval {low} to {high})"


def format_number(measure: str, value: float) -> str:
    """A share as a percentage, a rank as it is."""
    return f"{value:.1f}" if measure == "effective_rank" else f"{100 * value:.1f} %"
