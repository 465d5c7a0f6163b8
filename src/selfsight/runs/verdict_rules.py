"""Rules of the verdict: when a run has learned, guesses, or has a stale queue."""

import math
from statistics import fmean

from selfsight.runs.verdict_evidence import RunEvidence
from selfsight.train.collapse import LIMITS

# A rank of half the untrained network's is a collapse only if it is also low: a wide ResNet starts
# at 120.
RANK_LOST = 0.5
ENOUGH_RANK = 10.0
# A loss within 2 % of guessing is not better than guessing; a loss a tenth below it is.
AT_CHANCE = 0.98
BELOW_CHANCE = 0.9
# After three time constants, 5 % of the weights that encoded a key are left in the teacher.
STALE_TIME_CONSTANTS = 3.0
STALE_EPOCHS = 1.0  # an older queue holds keys of the same images that it is compared with
# A gain counts if chance alone would hardly give it: 3.5 standard errors happen by chance in one of
# 4,300 measurements. If kNN and linear agree, 2.75 of each are about as rare.
CLEAR, CLEAR_TOGETHER = 3.5, 2.75  # standard errors
MIN_GAIN = 0.01  # a smaller one does not count, however certain
WORSE = -2.0  # standard errors: one accuracy that fell this far contradicts another that rose
# How high retrieval is depends on how much the views differ, so the odds ratio has to rise as well.
GAIN_ODDS = 1.5
FALLEN_LOSS = 0.95  # of the first records: before training, the loss can be below that of guessing
MIN_RECORDS = 3
MAX_SKIPPED = 0.5  # share of the steps


def known_measures(e: RunEvidence) -> dict[str, float]:
    """The measures of a collapse that are known."""
    known = {key: getattr(e, key) for key in LIMITS}
    return {key: value for key, value in known.items() if value is not None}


def has_lost_rank(e: RunEvidence) -> bool:
    """Whether the features use fewer directions than those of the untrained network, and few."""
    if e.trained_rank is None or e.untrained_rank is None:
        return False
    return e.trained_rank < least_rank(e.untrained_rank, e.classes)


def least_rank(untrained: float, classes: int | None) -> float:
    """The rank below which directions were lost; a run with labels needs no more than its classes.

    The same third of the classes as in `lower_limits`.
    """
    return min(RANK_LOST * untrained, ENOUGH_RANK, (classes or math.inf) / 3)


def is_at_chance(e: RunEvidence) -> bool:
    """Whether the loss is that of guessing."""
    if e.loss is None or e.chance_loss is None:
        return False
    return e.loss > AT_CHANCE * e.chance_loss


def queue_age(e: RunEvidence) -> float | None:
    """Age of the oldest key, in time constants of the teacher."""
    if e.queue_steps is None or e.teacher_steps is None:
        return None
    return e.queue_steps / e.teacher_steps


def is_stale(e: RunEvidence) -> bool:
    """Whether the keys of the queue are too old."""
    if (queue_age(e) or 0) > STALE_TIME_CONSTANTS:
        return True
    return e.queue_epochs is not None and e.queue_epochs > STALE_EPOCHS


def find_gain(e: RunEvidence) -> int | None:
    """Compare with the untrained network: 1 better, -1 worse, 0 similar, None if not measured.

    Labels decide if there are any: both accuracies count, and neither may contradict the other or
    be no better than guessing.
    """
    if not e.labeled:
        return find_retrieval_gain(e)
    zs, gains = [score.z for score in e.labeled], [score.gain for score in e.labeled]
    if min(zs) <= -CLEAR and max(zs) < CLEAR:
        return -1
    is_clear = any(score.z >= CLEAR and score.gain >= MIN_GAIN for score in e.labeled)
    is_clear_together = fmean(zs) >= CLEAR_TOGETHER and fmean(gains) >= MIN_GAIN
    agree = len(zs) > 1 and min(zs) > 0 and is_clear_together
    return int((is_clear or agree) and min(zs) > WORSE and not is_guessing(e))


def is_guessing(e: RunEvidence) -> bool:
    """Whether the better accuracy is not clearly above that of guessing."""
    best = max(e.labeled, key=lambda score: score.accuracy)
    if e.chance is None:
        return False
    error = math.sqrt(max(e.chance * (1 - e.chance), 1e-9) / best.images)
    return best.accuracy - e.chance < CLEAR * error


def find_retrieval_gain(e: RunEvidence) -> int | None:
    """Compare the retrieval of images with the untrained network: 1, 0 or -1 as in `find_gain`."""
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


def has_loss_fallen(e: RunEvidence) -> bool:
    """Whether the loss is well below that of guessing, and below its first values."""
    if e.loss is None or e.chance_loss is None or e.first_loss is None:
        return False
    return e.loss < BELOW_CHANCE * e.chance_loss and e.loss < FALLEN_LOSS * e.first_loss
