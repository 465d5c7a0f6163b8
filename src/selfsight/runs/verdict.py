"""Judge a run in one sentence: learning, collapsed, or unclear.

The rule for a collapse is in train/collapse.py, since training uses it too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from selfsight.runs.verdict_evidence import Json, RunEvidence, gather_evidence
from selfsight.runs.verdict_rows import EvidenceRow, build_rows, name_small_gain
from selfsight.runs.verdict_rules import (
    CLEAR,
    MAX_SKIPPED,
    MIN_RECORDS,
    STALE_TIME_CONSTANTS,
    find_gain,
    has_loss_fallen,
    has_lost_rank,
    is_at_chance,
    is_guessing,
    is_stale,
    known_measures,
    queue_age,
)
from selfsight.train.collapse import LIMITS, describe_symptom, find_symptom, lower_limits

State = Literal["learning", "collapsed", "unclear"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A verdict: a state, a sentence and the evidence."""

    verdict: State
    sentence: str
    evidence: tuple[EvidenceRow, ...] = ()


def judge(
    records: Sequence[Json], results: Json, recipe: Json, events: Sequence[Json] = ()
) -> Verdict:
    """Judge a run by its log records, its results by name, its recipe and its events."""
    verdict = judge_evidence(gather_evidence(records, results, recipe, events))
    if not (recipe.get("start") or {}).get("name"):
        return verdict
    rows = [
        EvidenceRow(**{k: _name_start(v) for k, v in vars(row).items()}) for row in verdict.evidence
    ]
    return replace(verdict, sentence=_name_start(verdict.sentence), evidence=tuple(rows))


def _name_start(text: str) -> str:
    """Name the initial encoder of a run that did not start from random weights."""
    return text.replace("the untrained network", "the start encoder").replace("untrained", "start")


def judge_evidence(evidence: RunEvidence) -> Verdict:
    """Judge a run by its numbers."""
    state, sentence = _decide(evidence)
    sentence += _describe_alarm(evidence, state) + _describe_not_counted(evidence)
    return Verdict(verdict=state, sentence=sentence, evidence=tuple(build_rows(evidence)))


def _decide(e: RunEvidence) -> tuple[State, str]:
    if e.diverged:
        return "unclear", (
            "Unclear: the loss is no longer finite, so the run has diverged; lower the learning "
            "rate or lengthen the warm-up."
        )
    if e.skipped_steps > MAX_SKIPPED * e.steps:
        return "unclear", (
            f"Unclear: {e.skipped_steps} of {e.steps} steps were skipped because their gradient "
            "was not finite; lower the learning rate or lengthen the warm-up."
        )
    if symptom := _collapse(e):
        return "collapsed", f"Collapsed: {symptom}; {_cause(e)}."
    gain = find_gain(e)
    if gain is None and e.records < MIN_RECORDS:
        return "unclear", (
            f"Unclear: {e.records} log records are too few to judge; train for longer."
        )
    stale = f", although {_describe_stale(e)}" if is_stale(e) else ""
    if gain is not None and gain > 0:
        return "learning", f"Learning: {_describe_gain(e)}{_directions(e)}{stale}{_pixels(e)}."
    if gain is not None:
        why = _describe_stale(e) if is_stale(e) else "train for longer, or look at the curves"
        guess = f", and the loss {e.loss:.2f} is that of guessing" if is_at_chance(e) else ""
        problem = _describe_problem(e, gain)
        return "unclear", f"Unclear: {_describe_gain(e)}; {problem}{guess}{_pixels(e)}; {why}."
    if is_at_chance(e):
        why = _describe_stale(e) if is_stale(e) else "train for longer or raise the learning rate"
        return "unclear", (
            f"Unclear: the loss is {e.loss:.2f}, and guessing gives {e.chance_loss:.2f}; {why}."
        )
    if e.loss is not None and e.chance_loss is not None and has_loss_fallen(e):
        return "learning", (
            f"Learning, by the loss alone: it is {e.loss:.2f}, well below the {e.chance_loss:.2f} "
            f"of guessing{_directions(e)}{stale}."
        )
    return "unclear", (
        "Unclear: nothing has collapsed, but nothing shows a gain over the untrained network "
        f"either{stale}; evaluate the run to know."
    )


def _describe_alarm(e: RunEvidence, state: State) -> str:
    """Say in a sentence that the run had collapsed during training."""
    if e.collapsed_at is None or (state == "collapsed" and e.recovered_at is None):
        return ""
    until = "" if e.recovered_at is None else f" until step {e.recovered_at}"
    return f" While it was training, it had collapsed from step {e.collapsed_at}{until}."


def _describe_not_counted(e: RunEvidence) -> str:
    """Name the accuracies that are not counted because they were measured in another way."""
    if not e.not_counted:
        return ""
    counted = e.labeled[0].name if e.labeled else "the other results"
    names = ", ".join(f"{score.name} ({score.accuracy:.1%})" for score in e.not_counted)
    verb = "is" if len(e.not_counted) == 1 else "are"
    return (
        f" Not counted: {names}, which {verb} of other images than {counted}, or of images seen in "
        "another way."
    )


def _collapse(e: RunEvidence) -> str | None:
    """Describe what has collapsed; None if nothing has."""
    measures = known_measures(e)
    limits = lower_limits(e.batch_size, e.embedding_dim, e.classes)
    symptom = find_symptom(measures, e.highest, limits)
    if symptom is not None:
        return describe_symptom(symptom, measures[symptom], e.embedding_dim)
    if has_lost_rank(e) and (find_gain(e) or 0) <= 0:
        return (
            f"the features use {e.trained_rank:.1f} directions, where those of the untrained "
            f"network used {e.untrained_rank:.1f} (dimensional collapse)"
        )
    if e.predictor is False and (find_gain(e) or 0) <= 0:
        # Nothing prevents a collapse here, so it is certain, even if no fall was logged.
        if e.embedding_std is None:
            return "the embeddings were not logged, but nothing prevents their collapse"
        if e.embedding_std < LIMITS["embedding_std"].low:
            return describe_symptom("embedding_std", e.embedding_std, e.embedding_dim)
    return None


def _cause(e: RunEvidence) -> str:
    """Name the likely cause and the remedy."""
    if e.predictor is False:
        return (
            "the method has no negatives, and the predictor that prevents this is switched off: "
            "switch it on"
        )
    if is_stale(e):
        return _describe_stale(e)
    if e.classes is not None:
        return "lower the learning rate or lengthen the warm-up, and check the labels"
    if e.chance_loss is None:
        return (
            "lower the learning rate, or strengthen what prevents this: train a predictor faster "
            "than the rest, give a term that spreads the embeddings more weight"
        )
    return "lower the learning rate, or make the views differ more"


def _describe_stale(e: RunEvidence) -> str:
    if (queue_age(e) or 0) > STALE_TIME_CONSTANTS:
        return (
            "the queue is stale (its oldest keys were encoded "
            f"{e.queue_steps:.0f} steps ago, and the teacher averages over about "
            f"{e.teacher_steps:.0f}): shorten the queue or raise the momentum"
        )
    return (
        f"the queue holds the keys of {e.queue_epochs:.1f} epochs, so that images are pushed away "
        "from their own old keys: shorten the queue"
    )


def _describe_gain(e: RunEvidence) -> str:
    if not e.labeled:
        return (
            f"a second view of an image retrieves the first in {e.retrieval:.1%} of cases, against "
            f"{e.untrained_retrieval:.1%} for the untrained network"
        )
    first, *others = e.labeled
    guess = "" if e.chance is None else f" and {e.chance:.1%} by guessing"
    text = (
        f"{first.name} is {first.accuracy:.1%} of {first.images:,} images, against "
        f"{first.untrained:.1%} for the untrained network{guess}"
    )
    if others and (first.z < CLEAR or others[0].z < CLEAR):  # they do not say the same
        text += f", and {others[0].name} {others[0].accuracy:.1%} against {others[0].untrained:.1%}"
    return text


def _describe_problem(e: RunEvidence, gain: int) -> str:
    """Say why this is not called learning."""
    if gain < 0:
        return "that is worse"
    if not e.labeled:
        low = e.retrieval_gain[0] if e.retrieval_gain else 0.0
        return f"that is {name_small_gain(low)}"
    if is_guessing(e):
        return "that is not clearly better than guessing"
    if max(s.z for s in e.labeled) >= CLEAR:
        return "one rose and the other fell"
    first = e.labeled[0]
    return (
        f"that is {name_small_gain(first.gain_low)} ({100 * first.gain:+.1f} points, 95 % interval "
        f"{100 * first.gain_low:+.1f} to {100 * first.gain_high:+.1f})"
    )


def _pixels(e: RunEvidence) -> str:
    """Say that raw pixels classify better, if they do."""
    if e.pixels is None or not e.labeled or e.pixels <= e.labeled[0].accuracy:
        return ""
    return f", but raw pixels give {e.pixels:.1%}"


def _directions(e: RunEvidence) -> str:
    """Describe the number of directions that the features use, as the end of a sentence."""
    if e.trained_rank is not None and e.untrained_rank is not None:
        return (
            f", and the features use about {e.trained_rank:.0f} directions (untrained "
            f"{e.untrained_rank:.0f})"
        )
    if e.effective_rank is not None:
        return f", and the features use about {e.effective_rank:.0f} directions"
    return ""
