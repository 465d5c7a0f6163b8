"""Judge a run in one sentence: learning, collapsed, or unclear.

The rule for a collapse is in train/collapse.py, since a run is watched for one too.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from selfsight.runs.verdict_evidence import Json, RunEvidence, gather_evidence
from selfsight.train.collapse import LIMITS, describe_symptom, find_symptom, lower_limits

State = Literal["learning", "collapsed", "unclear"]

# A rank of half the untrained network's is a collapse only if it is also low: a wide ResNet starts
# at 120.
RANK_LOST = 0.5
ENOUGH_RANK = 10.0
# A loss within 2 % of that of guessing is no better; a loss a tenth below it is.
AT_CHANCE = 0.98
BELOW_CHANCE = 0.9
# After three time constants, 5 % of the weights that encoded a key are left in the teacher.
STALE_TIME_CONSTANTS = 3.0
STALE_EPOCHS = 1.0  # an older queue holds keys of the same images that it is compared with
# A gain counts if chance alone would hardly give it: 3.5 standard errors happen by chance in one of
# 4,300 measurements. If kNN and linear agree, 2.75 of each are about as rare.
CLEAR, CLEAR_TOGETHER = 3.5, 2.75  # standard errors
MIN_GAIN = 0.01
WORSE = -2.0  # standard errors: one accuracy that fell this far contradicts another that rose
# How high retrieval is depends on how much the views differ, so the odds ratio has to rise as well.
GAIN_ODDS = 1.5
FALLEN_LOSS = 0.95  # of the first records: before training, the loss can be below that of guessing
MIN_RECORDS = 3
MAX_SKIPPED = 0.5  # share of the steps

ALIKE, DISTINCT = "all images look alike", "images are distinguished"
FEW, MANY = "only a few directions are used", "many directions are used"
NOT_FALLEN = "low, but not fallen by half: no collapse"
MEASURES = {
    "feature_std": "feature spread",
    "effective_rank": "effective rank",
    "embedding_std": "embedding spread",
    "embedding_rank": "embedding rank",
}


@dataclass(frozen=True, kw_only=True)
class EvidenceRow:
    """One line of the evidence: a number, its healthy range and its meaning."""

    name: str
    value: str
    expected: str
    meaning: str


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
    """Say what a run is compared with that did not start from random weights."""
    return text.replace("the untrained network", "its start").replace("untrained", "start")


def judge_evidence(evidence: RunEvidence) -> Verdict:
    """Judge a run by its numbers."""
    state, sentence = _decide(evidence)
    sentence += _describe_alarm(evidence, state) + _describe_not_counted(evidence)
    return Verdict(verdict=state, sentence=sentence, evidence=tuple(_build_rows(evidence)))


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
    gain = _gain(e)
    if gain is None and e.records < MIN_RECORDS:
        return "unclear", (
            f"Unclear: {e.records} log records are too few to judge; train for longer."
        )
    stale = f", although {_describe_stale(e)}" if _is_stale(e) else ""
    if gain is not None and gain > 0:
        return "learning", f"Learning: {_describe_gain(e)}{_directions(e)}{stale}{_pixels(e)}."
    if gain is not None:
        why = _describe_stale(e) if _is_stale(e) else "train for longer, or look at the curves"
        guess = f", and the loss {e.loss:.2f} is that of guessing" if _at_chance(e) else ""
        problem = _describe_problem(e, gain)
        return "unclear", f"Unclear: {_describe_gain(e)}; {problem}{guess}{_pixels(e)}; {why}."
    if _at_chance(e):
        why = _describe_stale(e) if _is_stale(e) else "train for longer or raise the learning rate"
        return "unclear", (
            f"Unclear: the loss is {e.loss:.2f}, and guessing gives {e.chance_loss:.2f}; {why}."
        )
    if e.loss is not None and e.chance_loss is not None and _loss_has_fallen(e):
        return "learning", (
            f"Learning, by the loss alone: it is {e.loss:.2f}, well below the {e.chance_loss:.2f} "
            f"of guessing{_directions(e)}{stale}."
        )
    return "unclear", (
        "Unclear: nothing has collapsed, but nothing shows a gain over the untrained network "
        f"either{stale}; evaluate the run to know."
    )


def _describe_alarm(e: RunEvidence, state: State) -> str:
    """Say that the run had collapsed on its way, as a sentence of its own."""
    if e.collapsed_at is None or (state == "collapsed" and e.recovered_at is None):
        return ""
    until = "" if e.recovered_at is None else f" until step {e.recovered_at}"
    return f" While it was training, it had collapsed from step {e.collapsed_at}{until}."


def _describe_not_counted(e: RunEvidence) -> str:
    """Say which accuracies were left out, because they were measured in another way."""
    return "".join(
        f" Not counted: {score.name} ({score.accuracy:.1%}), which "
        f"is of other images than {e.labeled[0].name}, or of images seen in another way."
        for score in e.not_counted
    )


def _collapse(e: RunEvidence) -> str | None:
    """Describe what has collapsed; None if nothing has."""
    measures = _measures(e)
    symptom = find_symptom(measures, e.highest, lower_limits(e.batch_size, e.embedding_dim))
    if symptom is not None:
        return describe_symptom(symptom, measures[symptom], e.embedding_dim)
    if _has_lost_rank(e) and (_gain(e) or 0) <= 0:
        return (
            f"the features use {e.trained_rank:.1f} directions, where those of the untrained "
            f"network used {e.untrained_rank:.1f} (dimensional collapse)"
        )
    if e.predictor is False and (_gain(e) or 0) <= 0:
        # Nothing prevents a collapse here, so that it is what happens, also if no fall was logged.
        if e.embedding_std is None:
            return "the embeddings were not logged, but nothing prevents their collapse"
        if e.embedding_std < LIMITS["embedding_std"].low:
            return describe_symptom("embedding_std", e.embedding_std, e.embedding_dim)
    return None


def _measures(e: RunEvidence) -> dict[str, float]:
    """The measures of a collapse that are known."""
    known = {key: getattr(e, key) for key in LIMITS}
    return {key: value for key, value in known.items() if value is not None}


def _cause(e: RunEvidence) -> str:
    """Name the likely cause and the remedy."""
    if e.predictor is False:
        return (
            "the method has no negatives, and the predictor that prevents this is switched off: "
            "switch it on"
        )
    if _is_stale(e):
        return _describe_stale(e)
    if e.chance_loss is None:
        return (
            "lower the learning rate, or strengthen what prevents this: train a predictor faster "
            "than the rest, give a term that spreads the embeddings more weight"
        )
    return "lower the learning rate, or make the views differ more"


def _has_lost_rank(e: RunEvidence) -> bool:
    if e.trained_rank is None or e.untrained_rank is None:
        return False
    return e.trained_rank < min(RANK_LOST * e.untrained_rank, ENOUGH_RANK)


def _at_chance(e: RunEvidence) -> bool:
    if e.loss is None or e.chance_loss is None:
        return False
    return e.loss > AT_CHANCE * e.chance_loss


def _queue_age(e: RunEvidence) -> float | None:
    """Age of the oldest key, in time constants of the teacher."""
    if e.queue_steps is None or e.teacher_steps is None:
        return None
    return e.queue_steps / e.teacher_steps


def _is_stale(e: RunEvidence) -> bool:
    if (_queue_age(e) or 0) > STALE_TIME_CONSTANTS:
        return True
    return e.queue_epochs is not None and e.queue_epochs > STALE_EPOCHS


def _describe_stale(e: RunEvidence) -> str:
    if (_queue_age(e) or 0) > STALE_TIME_CONSTANTS:
        return (
            "the queue is stale (its oldest keys were encoded "
            f"{e.queue_steps:.0f} steps ago, and the teacher averages over about "
            f"{e.teacher_steps:.0f}): shorten the queue or raise the momentum"
        )
    return (
        f"the queue holds the keys of {e.queue_epochs:.1f} epochs, so that images are pushed away "
        "from their own old keys: shorten the queue"
    )


def _gain(e: RunEvidence) -> int | None:
    """Compare with the untrained network: 1 better, -1 worse, 0 similar, None if not measured.

    Labels decide if there are any: both accuracies count, and neither may contradict the other or
    be no better than guessing.
    """
    if not e.labeled:
        return _retrieval_gain(e)
    zs = [score.z for score in e.labeled]
    if min(zs) <= -CLEAR and max(zs) < CLEAR:
        return -1
    is_clear = any(score.z >= CLEAR and score.gain >= MIN_GAIN for score in e.labeled)
    agree = len(zs) > 1 and min(zs) > 0 and sum(zs) / len(zs) >= CLEAR_TOGETHER
    return int((is_clear or agree) and min(zs) > WORSE and not _guesses(e))


def _guesses(e: RunEvidence) -> bool:
    """Whether the better accuracy is not clearly above that of guessing."""
    best = max(e.labeled, key=lambda score: score.accuracy)
    if e.chance is None:
        return False
    error = math.sqrt(max(e.chance * (1 - e.chance), 1e-9) / best.images)
    return best.accuracy - e.chance < CLEAR * error


def _retrieval_gain(e: RunEvidence) -> int | None:
    if e.retrieval is None or e.untrained_retrieval is None:
        return None
    now, before, n = e.retrieval, e.untrained_retrieval, e.retrieval_images or 1
    mean = (now + before) / 2
    error = math.sqrt(max(2 * mean * (1 - mean), 1e-9) / n)
    return _odds_rose(now, before, error) - _odds_rose(before, now, error)


def _odds_rose(now: float, before: float, error: float) -> bool:
    """Return whether a share rose clearly in points and in odds."""
    odds = now * (1 - before) >= GAIN_ODDS * before * (1 - now)
    return odds and now - before >= max(MIN_GAIN, CLEAR * error)


def _loss_has_fallen(e: RunEvidence) -> bool:
    if e.loss is None or e.chance_loss is None or e.first_loss is None:
        return False
    return e.loss < BELOW_CHANCE * e.chance_loss and e.loss < FALLEN_LOSS * e.first_loss


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
        return "that is no clear gain"
    if _guesses(e):
        return "that is not clearly better than guessing"
    if max(s.z for s in e.labeled) >= CLEAR:
        return "one rose and the other fell"
    first = e.labeled[0]
    return (
        f"that is no clear gain ({100 * first.gain:+.1f} points, 95 % interval "
        f"{100 * first.gain_low:+.1f} to {100 * first.gain_high:+.1f})"
    )


def _pixels(e: RunEvidence) -> str:
    """Say that raw pixels classify better, if they do."""
    if e.pixels is None or not e.labeled or e.pixels <= e.labeled[0].accuracy:
        return ""
    return f", but raw pixels give {e.pixels:.1%}"


def _directions(e: RunEvidence) -> str:
    """Number of directions that the features use, as the end of a sentence."""
    if e.trained_rank is not None and e.untrained_rank is not None:
        return (
            f", and the features use about {e.trained_rank:.0f} directions (untrained "
            f"{e.untrained_rank:.0f})"
        )
    if e.effective_rank is not None:
        return f", and the features use about {e.effective_rank:.0f} directions"
    return ""


def _build_rows(e: RunEvidence) -> list[EvidenceRow]:
    """Build a row for every known number."""
    rows: list[EvidenceRow] = []

    def add(name: str, value: str, expected: str, bad: bool, if_bad: str, if_good: str) -> None:
        meaning = if_bad if bad else if_good
        rows.append(EvidenceRow(name=name, value=value, expected=expected, meaning=meaning))

    if e.loss is not None and e.chance_loss is not None:
        expected = f"below {BELOW_CHANCE * e.chance_loss:.2f} (guessing gives {e.chance_loss:.2f})"
        degree = "better" if e.loss < BELOW_CHANCE * e.chance_loss else "hardly better"
        meaning = f"{'no better' if _at_chance(e) else degree} than guessing"
        add("loss", f"{e.loss:.3f}", expected, False, "", meaning)
    if e.skipped_steps:
        value = f"{e.skipped_steps} of {e.steps}"
        first = f"; the first was step {e.first_skipped}" if e.first_skipped else ""
        meaning = f"their gradients were not finite{first}: selfsight replay shows where"
        add("skipped steps", value, "none, or a few", True, meaning, "")
    if e.collapsed_at is not None:
        end = "" if e.recovered_at is None else f" to {e.recovered_at}"
        meaning = "not over at the end" if e.recovered_at is None else "over since then"
        add("collapse alarm", f"step {e.collapsed_at}{end}", "none", True, meaning, "")
    limits = lower_limits(e.batch_size, e.embedding_dim)
    for key, number in _measures(e).items():
        low, is_spread = limits[key].low, key.endswith("_std")
        if_bad, if_good = (ALIKE, DISTINCT) if is_spread else (FEW, MANY)
        if find_symptom({key: number}, e.highest, limits) is None:
            if_bad = NOT_FALLEN
        expected = f"above {low:.3g}; 1 is even" if is_spread else f"above {low:.3g}"
        value = f"{number:.3f}" if is_spread else f"{number:.1f}"
        add(MEASURES[key], value, expected, number < low, if_bad, if_good)
    if e.trained_rank is not None and e.untrained_rank is not None:
        least = min(RANK_LOST * e.untrained_rank, ENOUGH_RANK)
        expected = f"above {least:.1f} (untrained {e.untrained_rank:.1f})"
        bad, value = _has_lost_rank(e), f"{e.trained_rank:.1f}"
        add("rank against untrained", value, expected, bad, "directions lost", "no directions lost")
    for score in e.labeled:
        expected = f"clearly above {score.untrained:.1%} (untrained)"
        value = f"{score.accuracy:.1%} of {score.images:,} images"
        degree = "better" if score.z >= CLEAR else "worse" if score.z <= -CLEAR else "no clear gain"
        ends = f"{100 * score.gain_low:+.1f} to {100 * score.gain_high:+.1f} points"
        add(score.name, value, expected, False, "", f"{degree} ({ends})")
    for score in e.not_counted:
        expected = f"the same images as {e.labeled[0].name}, seen in the same way"
        value = f"{score.accuracy:.1%} of {score.images:,} images"
        add(score.name, value, expected, True, "not counted", "")
    if e.pixels is not None and e.labeled:
        bad = e.pixels > e.labeled[0].accuracy
        expected = f"below {e.labeled[0].accuracy:.1%} ({e.labeled[0].name})"
        better, worse = "pixels do better", "the features do better"
        add("raw pixels, in the same way", f"{e.pixels:.1%}", expected, bad, better, worse)
    if e.retrieval is not None and e.untrained_retrieval is not None:
        meanings = {1: "better than untrained", 0: "no clear gain", -1: "worse than untrained"}
        expected = f"above {e.untrained_retrieval:.1%} (untrained)"
        meaning = meanings[_retrieval_gain(e) or 0]
        add("same-image retrieval", f"{e.retrieval:.1%}", expected, False, "", meaning)
    if e.knn_dips is not None:
        value = f"{e.knn_dips} of {e.knn_measurements} measurements"
        dipped = "unstable: it fell a point or more below its best"
        add("dips of online_knn", value, "none", e.knn_dips > 0, dipped, "stable")
    if e.queue_steps is not None:
        age = "" if e.queue_epochs is None else f" ({e.queue_epochs:.2f} epochs)"
        most = None if e.teacher_steps is None else STALE_TIME_CONSTANTS * e.teacher_steps
        limit = "" if most is None else f"{most:.0f} steps and "
        value, expected = f"{e.queue_steps:.0f} steps{age}", f"below {limit}{STALE_EPOCHS:g} epoch"
        add("age of the queue", value, expected, _is_stale(e), "stale", "fresh")
    if e.predictor is False:
        add("predictor", "none", "one", True, "nothing prevents collapse", "")
    return rows
