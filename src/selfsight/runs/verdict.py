"""One sentence on a run: is it learning, has it collapsed, or can nobody tell yet?

Thresholds come from small runs watched on purpose (ten classes of photographs, ResNets of 64 and
128 features, some hundred steps; spread and rank as in evals.spectrum). Healthy SimCLR, MoCo and
BYOL had embeddings of spread 0.75 to 0.98 and rank 13 to 28; BYOL without its predictor had spread
0.10 and falling, rank 4, although the features before the projector kept spread 0.6 and rank 32;
MoCo with a stale queue had rank 2. So the projector's output is looked at first.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from selfsight.runs.evidence import Facts, Json, facts_of

Word = Literal["learning", "collapsed", "unclear"]

# An untrained ResNet's features already lie close together (spread 0.15 to 0.25 of 1), so only
# next to nothing is proof.
ONE_POINT_FEATURES = 0.02
# Embeddings of a healthy run keep well above 0.5. MoCo can start near 0.25 and rise, so between
# the two levels it is collapse only if they were spread before.
ONE_POINT_EMBEDDINGS = 0.15
NARROW_EMBEDDINGS = 0.3
FALLEN = 0.5  # share of the highest value seen
# Effective rank. Even ten well-separated classes need some ten directions, and the mean alone is
# one; a batch of n rows cannot show more than n.
FEW_DIRECTIONS = 4.0
# Against the untrained network the rank may halve while much is left: a wide ResNet starts at 120.
RANK_LOST = 0.5
MUCH_LEFT = 10.0
# A loss within 2 % of guessing is guessing; a tenth below it is not.
AT_CHANCE = 0.98
BELOW_CHANCE = 0.9
# Keys three memories of the teacher old were made by weights of which 5 % are left.
STALE_MEMORIES = 3.0
STALE_EPOCHS = 1.0  # beyond it the queue holds keys of the very images that it is compared with
# Untrained networks that differ only by their seed lay up to six points apart on 400 images, and
# most within three. Near 100 % the odds tell.
GAIN_POINTS = 0.05
GAIN_ODDS = 1.5
LEAST_GAIN = 0.01
FEWEST_RECORDS = 3
MOST_LOST = 0.5  # share of the steps that may be left out before nothing can be said

ALIKE, APART = "all images look alike", "images are told apart"
FEW, MANY = "only a few directions are used", "many directions are used"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One number: what it is, what a healthy run has, what it says."""

    name: str
    value: str
    expected: str
    says: str


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The answer, in a word, a sentence and its numbers."""

    verdict: Word
    sentence: str
    evidence: tuple[Evidence, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values that JSON can hold."""
        return asdict(self) | {"evidence": [asdict(row) for row in self.evidence]}


def judge(records: Sequence[Json], results: Json, recipe: Json) -> Verdict:
    """Judge a run by its log, its results by name, and its recipe as plain values."""
    return weigh(facts_of(records, results, recipe))


def weigh(facts: Facts) -> Verdict:
    """Judge a run by its numbers."""
    word, sentence = _answer(facts)
    return Verdict(verdict=word, sentence=sentence, evidence=tuple(_evidence(facts)))


def _answer(f: Facts) -> tuple[Word, str]:
    if f.diverged:
        return "unclear", (
            "Unclear: the loss is no longer a number, so the run has diverged; lower the learning "
            "rate or lengthen the warm-up."
        )
    if f.lost_steps > MOST_LOST * f.steps:
        return "unclear", (
            f"Unclear: {f.lost_steps} of {f.steps} steps had no finite gradient and were not "
            "taken; lower the learning rate or lengthen the warm-up."
        )
    if symptom := _collapse(f):
        return "collapsed", f"Collapsed: {symptom}; {_cause(f)}."
    gain = _gain(f)
    if gain is None and f.records < FEWEST_RECORDS:
        return "unclear", (
            f"Unclear: {f.records} log records are too few to judge by; train for longer."
        )
    stale = f", although {_stale_words(f)}" if _stale(f) else ""
    if gain is not None and gain > 0:
        return "learning", f"Learning: {_gain_words(f)}{_breadth(f)}{stale}."
    if gain is not None:
        why = _stale_words(f) if _stale(f) else "train for longer, or look at the curves"
        guess = f", and the loss {f.loss:.2f} is that of guessing" if _at_chance(f) else ""
        worse = "that is worse" if gain < 0 else "that is no clear gain"
        return "unclear", f"Unclear: {_gain_words(f)}; {worse}{guess}; {why}."
    if _at_chance(f):
        why = _stale_words(f) if _stale(f) else "train for longer or raise the learning rate"
        return "unclear", (
            f"Unclear: the loss is {f.loss:.2f}, and guessing gives {f.chance_loss:.2f}; {why}."
        )
    if f.loss is not None and f.chance_loss is not None and f.loss < BELOW_CHANCE * f.chance_loss:
        return "learning", (
            f"Learning, by the loss alone: it is {f.loss:.2f}, well below the {f.chance_loss:.2f} "
            f"of guessing{_breadth(f)}{stale}."
        )
    return "unclear", (
        "Unclear: nothing has collapsed, but nothing shows a gain over the untrained network "
        f"either{stale}; evaluate the run to know."
    )


def _collapse(f: Facts) -> str | None:
    """What has collapsed, in words; None if nothing has."""
    if f.feature_std is not None and f.feature_std < ONE_POINT_FEATURES:
        return (
            f"the features of all images are nearly one point (spread {f.feature_std:.3f}, where "
            "1 is even)"
        )
    if _embeddings_are_one_point(f):
        return (
            f"the embeddings of all images are nearly one point (spread {f.embedding_std:.2f}, "
            "where 1 is even)"
        )
    if _few(f.effective_rank, f):
        return (
            f"the features are spread over only about {f.effective_rank:.1f} directions "
            "(dimensional collapse)"
        )
    if _few(f.embedding_rank, f):
        of = f" of {f.embedding_dim}" if f.embedding_dim else ""
        return (
            f"the embeddings are spread over only about {f.embedding_rank:.1f}{of} directions "
            "(dimensional collapse)"
        )
    if _rank_lost(f) and (_gain(f) or 0) <= 0:
        return (
            f"the features use {f.trained_rank:.1f} directions, where those of the untrained "
            f"network used {f.untrained_rank:.1f} (dimensional collapse)"
        )
    if f.predictor is False and f.embedding_std is None and (_gain(f) or 0) <= 0:
        # A log without embeddings cannot show this collapse, but nothing else is to be expected.
        return "the embeddings were not logged, but nothing keeps them apart"
    return None


def _cause(f: Facts) -> str:
    """The likely reason and what to do."""
    if f.predictor is False:
        return (
            "the method has no negatives and runs without the predictor that would prevent this: "
            "switch it on"
        )
    if _stale(f):
        return _stale_words(f)
    if f.chance_loss is None:
        return "lower the learning rate, or train the predictor faster than the rest"
    return "lower the learning rate, or make the views differ more"


def _embeddings_are_one_point(f: Facts) -> bool:
    if f.embedding_std is None:
        return False
    fell = f.embedding_std < FALLEN * (f.highest_embedding_std or 0)
    return f.embedding_std < (NARROW_EMBEDDINGS if fell else ONE_POINT_EMBEDDINGS)


def _few(rank: float | None, f: Facts) -> bool:
    most = f.batch_size or math.inf  # a small batch cannot show a high rank
    return rank is not None and rank < min(FEW_DIRECTIONS, most / 3)


def _rank_lost(f: Facts) -> bool:
    if f.trained_rank is None or f.untrained_rank is None:
        return False
    return f.trained_rank < min(RANK_LOST * f.untrained_rank, MUCH_LEFT)


def _at_chance(f: Facts) -> bool:
    if f.loss is None or f.chance_loss is None:
        return False
    return f.loss > AT_CHANCE * f.chance_loss


def _memories(f: Facts) -> float | None:
    """Age of the oldest key, in memories of the teacher."""
    if f.queue_steps is None or f.teacher_steps is None:
        return None
    return f.queue_steps / f.teacher_steps


def _stale(f: Facts) -> bool:
    if (_memories(f) or 0) > STALE_MEMORIES:
        return True
    return f.queue_epochs is not None and f.queue_epochs > STALE_EPOCHS


def _stale_words(f: Facts) -> str:
    if (_memories(f) or 0) > STALE_MEMORIES:
        return (
            "the queue is far older than the encoder (its oldest keys were made "
            f"{f.queue_steps:.0f} steps ago, and the teacher remembers about "
            f"{f.teacher_steps:.0f}): shorten the queue or raise the momentum"
        )
    return (
        f"the queue is older than an epoch (it holds the keys of {f.queue_epochs:.1f}), so that "
        "images are pushed away from their own old keys: shorten the queue"
    )


def _gain(f: Facts) -> int | None:
    """1 better than the untrained network, -1 worse, 0 much the same, None if nobody measured."""
    signs = [sign for *_, sign in _measures(f)]
    return signs[0] if signs else None


def _measures(f: Facts) -> list[tuple[str, float, float, int]]:
    """Name, value, untrained value and sign of what was measured; what labels say comes first."""
    pairs = (
        ("kNN accuracy", f.knn, f.untrained_knn, GAIN_POINTS),
        # Views that differ much or little make retrieval low or high; only the odds compare.
        ("same-image retrieval", f.retrieval, f.untrained_retrieval, math.inf),
    )
    return [
        (name, now, before, _better(now, before, points) - _better(before, now, points))
        for name, now, before, points in pairs
        if now is not None and before is not None
    ]


def _better(now: float, before: float, points: float) -> bool:
    odds = now * (1 - before) >= GAIN_ODDS * before * (1 - now)
    return now - before >= points or (odds and now - before >= LEAST_GAIN)


def _gain_words(f: Facts) -> str:
    if f.knn is not None and f.untrained_knn is not None:
        guess = "" if f.chance is None else f" and {f.chance:.1%} by guessing"
        return (
            f"kNN accuracy is {f.knn:.1%}, against {f.untrained_knn:.1%} for the untrained "
            f"network{guess}"
        )
    return (
        f"a second view of an image finds the first in {f.retrieval:.1%} of cases, against "
        f"{f.untrained_retrieval:.1%} for the untrained network"
    )


def _breadth(f: Facts) -> str:
    """How broad the features are, as the end of a sentence that praises."""
    if f.trained_rank is not None and f.untrained_rank is not None:
        return (
            f", and the features use about {f.trained_rank:.0f} directions (untrained "
            f"{f.untrained_rank:.0f})"
        )
    if f.effective_rank is not None:
        return f", and the features use about {f.effective_rank:.0f} directions"
    return ""


def _evidence(f: Facts) -> list[Evidence]:
    """A row for every number that is known."""
    rows: list[Evidence] = []

    def add(name: str, value: str, expected: str, bad: bool, wrong: str, right: str) -> None:
        says = wrong if bad else right
        rows.append(Evidence(name=name, value=value, expected=expected, says=says))

    if f.loss is not None and f.chance_loss is not None:
        expected = f"below {BELOW_CHANCE * f.chance_loss:.2f} (guessing gives {f.chance_loss:.2f})"
        right = "better" if f.loss < BELOW_CHANCE * f.chance_loss else "hardly better"
        says = f"{'no better' if _at_chance(f) else right} than guessing"
        add("loss", f"{f.loss:.3f}", expected, False, "", says)
    if f.lost_steps:
        value = f"{f.lost_steps} of {f.steps}"
        add("steps lost", value, "none, or a few", True, "their gradients were not finite", "")
    if f.feature_std is not None:
        bad = f.feature_std < ONE_POINT_FEATURES
        expected = f"above {ONE_POINT_FEATURES}; 1 is even"
        add("feature spread", f"{f.feature_std:.3f}", expected, bad, ALIKE, APART)
    if f.effective_rank is not None:
        bad, expected = _few(f.effective_rank, f), f"above {FEW_DIRECTIONS:g}"
        add("effective rank", f"{f.effective_rank:.1f}", expected, bad, FEW, MANY)
    if f.embedding_std is not None:
        bad, expected = _embeddings_are_one_point(f), f"above {NARROW_EMBEDDINGS}; 1 is even"
        add("embedding spread", f"{f.embedding_std:.3f}", expected, bad, ALIKE, APART)
    if f.embedding_rank is not None:
        bad, expected = _few(f.embedding_rank, f), f"above {FEW_DIRECTIONS:g}"
        add("embedding rank", f"{f.embedding_rank:.1f}", expected, bad, FEW, MANY)
    if f.trained_rank is not None and f.untrained_rank is not None:
        least = min(RANK_LOST * f.untrained_rank, MUCH_LEFT)
        expected = f"above {least:.1f} (untrained {f.untrained_rank:.1f})"
        bad, value = _rank_lost(f), f"{f.trained_rank:.1f}"
        add("rank against untrained", value, expected, bad, "directions lost", "kept or gained")
    words = {1: "better than untrained", 0: "no clear gain", -1: "worse than untrained"}
    for name, now, before, sign in _measures(f):
        expected = f"above {before:.1%} (untrained)"
        add(name, f"{now:.1%}", expected, False, "", words[sign])
    if f.queue_steps is not None:
        age = "" if f.queue_epochs is None else f" ({f.queue_epochs:.2f} epochs)"
        most = None if f.teacher_steps is None else STALE_MEMORIES * f.teacher_steps
        memory = "" if most is None else f"{most:.0f} steps and "
        value, expected = f"{f.queue_steps:.0f} steps{age}", f"below {memory}{STALE_EPOCHS:g} epoch"
        add("age of the queue", value, expected, _stale(f), "older than the encoder", "fresh")
    if f.predictor is False:
        add("predictor", "none", "one", True, "nothing prevents collapse", "")
    return rows
