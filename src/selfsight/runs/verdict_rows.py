"""The evidence of a verdict as a table: each number, its healthy range and its meaning."""

from dataclasses import dataclass

from selfsight.runs.verdict_evidence import LabeledScore, RunEvidence
from selfsight.runs.verdict_rules import (
    BELOW_CHANCE,
    CLEAR,
    STALE_EPOCHS,
    STALE_TIME_CONSTANTS,
    find_retrieval_gain,
    has_lost_rank,
    is_at_chance,
    is_stale,
    known_measures,
    least_rank,
)
from selfsight.train.collapse import find_symptom, lower_limits

ALIKE, DISTINCT = "all images have the same features", "images are distinguished"
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


def _describe_score(score: LabeledScore) -> str:
    small = name_small_gain(score.gain_low)
    degree = "better" if score.z >= CLEAR else "worse" if score.z <= -CLEAR else small
    return f"{degree} ({100 * score.gain_low:+.1f} to {100 * score.gain_high:+.1f} points)"


def name_small_gain(low: float) -> str:
    """Name a gain that the rules do not call clear, by the low end of its 95 % interval."""
    return "a gain, but not a clear one" if low > 0 else "no clear gain"


def _of_images(e: RunEvidence) -> str:
    return "" if e.retrieval_images is None else f" of {e.retrieval_images:,} images"


def build_rows(e: RunEvidence) -> list[EvidenceRow]:
    """Build a row for every known number."""
    rows: list[EvidenceRow] = []

    def add(name: str, value: str, expected: str, bad: bool, if_bad: str, if_good: str) -> None:
        meaning = if_bad if bad else if_good
        rows.append(EvidenceRow(name=name, value=value, expected=expected, meaning=meaning))

    if e.loss is not None and e.chance_loss is not None:
        expected = f"below {BELOW_CHANCE * e.chance_loss:.2f} (guessing gives {e.chance_loss:.2f})"
        degree = "better" if e.loss < BELOW_CHANCE * e.chance_loss else "hardly better"
        meaning = f"{'no better' if is_at_chance(e) else degree} than guessing"
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
    limits = lower_limits(e.batch_size, e.embedding_dim, e.classes)
    for key, number in known_measures(e).items():
        low, is_spread = limits[key].low, key.endswith("_std")
        if_bad, if_good = (ALIKE, DISTINCT) if is_spread else (FEW, MANY)
        if find_symptom({key: number}, e.highest, limits) is None:
            if_bad = NOT_FALLEN
        expected = f"above {low:.3g}; 1 is even" if is_spread else f"above {low:.3g}"
        value = f"{number:.3f}" if is_spread else f"{number:.1f}"
        add(MEASURES[key], value, expected, number < low, if_bad, if_good)
    if e.trained_rank is not None and e.untrained_rank is not None:
        least = least_rank(e.untrained_rank, e.classes)
        expected = f"above {least:.1f} (untrained {e.untrained_rank:.1f})"
        ends = "" if e.rank_ends is None else " [{:.1f}, {:.1f}]".format(*e.rank_ends)
        bad, value = has_lost_rank(e), f"{e.trained_rank:.1f}{ends}{_of_images(e)}"
        add("rank against untrained", value, expected, bad, "directions lost", "no directions lost")
    for score in (*e.labeled, *e.not_counted):
        expected = f"clearly above {score.untrained:.1%} (untrained)"
        value, meaning = f"{score.accuracy:.1%} of {score.images:,} images", _describe_score(score)
        if score in e.not_counted:
            meaning += "; not counted"
        add(score.name, value, expected, False, "", meaning)
    if e.pixels is not None and e.labeled:
        bad = e.pixels > e.labeled[0].accuracy
        expected = f"below {e.labeled[0].accuracy:.1%} ({e.labeled[0].name})"
        equal = e.pixels == e.labeled[0].accuracy
        good = "the features do no better" if equal else "the features do better"
        value = f"{e.pixels:.1%}"
        add("raw pixels, in the same way", value, expected, bad, "pixels do better", good)
    if e.retrieval is not None and e.untrained_retrieval is not None:
        small = name_small_gain(e.retrieval_gain[0] if e.retrieval_gain else 0.0)
        meanings = {1: "better than untrained", 0: small, -1: "worse than untrained"}
        expected = f"clearly above {e.untrained_retrieval:.1%} (untrained)"
        meaning = meanings[find_retrieval_gain(e) or 0]
        if e.retrieval_gain is not None:
            low, high = (100 * end for end in e.retrieval_gain)
            meaning += f" ({low:+.1f} to {high:+.1f} points)"
        value = f"{e.retrieval:.1%}{_of_images(e)}"
        add("same-image retrieval", value, expected, False, "", meaning)
    if e.knn_dips is not None:
        value = f"{e.knn_dips} of {e.knn_measurements} measurements"
        dipped = "unstable: it fell a point or more below its best"
        add("dips of online_knn", value, "none", e.knn_dips > 0, dipped, "stable")
    if e.queue_steps is not None:
        age = "" if e.queue_epochs is None else f" ({e.queue_epochs:.2f} epochs)"
        most = None if e.teacher_steps is None else STALE_TIME_CONSTANTS * e.teacher_steps
        limit = "" if most is None else f"{most:.0f} steps and "
        value, expected = f"{e.queue_steps:.0f} steps{age}", f"below {limit}{STALE_EPOCHS:g} epoch"
        add("age of the queue", value, expected, is_stale(e), "stale", "fresh")
    if e.predictor is False:
        add("predictor", "none", "one", True, "nothing prevents collapse", "")
    return rows
