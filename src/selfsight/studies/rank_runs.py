"""How well criteria without labels choose among the ledger's own runs, as regret in points."""

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import NamedTuple

from selfsight.evals.select_checkpoint import CRITERIA, Criterion
from selfsight.studies.ledger import Entry


class Regret(NamedTuple):
    """The linear accuracy that choosing a run by a criterion loses, among runs of equal length."""

    network: str
    epochs: int
    criterion: str
    runs: int
    regret: float
    """Accuracy of the best run minus that of the chosen one, in points."""
    random: float
    """The same for a run that is chosen at random, on average."""
    correlation: float
    """Spearman's rank correlation of the criterion with the accuracy."""


def list_regrets(
    scale: str, entries: Sequence[Entry], *, without: Collection[str] = ()
) -> list[Regret]:
    """Rows for each network, length and criterion, which needs three runs or more that have it.

    Runs are comparable if they have the same data set, network and number of epochs. Those of the
    methods `without`, and those that used labels in training, are left out. Effective rank "in
    training" is the last one of the curve.
    """
    from scipy.stats import spearmanr  # half a second to import

    left_out = {"supervised", *without}
    groups = defaultdict(list)
    for entry in entries:
        is_scored = entry.scale == scale and entry.scored_on == "test" and not entry.quick
        if is_scored and entry.results and entry.recipe["method"]["name"] not in left_out:
            groups[entry.network, entry.epochs].append(entry)
    rows = []
    for (network, epochs), runs in sorted(groups.items()):
        scores = {"effective rank in training": [_last_rank(run) for run in runs]}
        scores |= {c.title: [_score(c, run) for run in runs] for c in CRITERIA}
        for title, column in scores.items():
            pairs = [
                (score, accuracy)
                for score, run in zip(column, runs, strict=True)
                if score is not None and (accuracy := run.accuracy("linear")) is not None
            ]
            if len(pairs) < 3:
                continue
            accuracies = [accuracy for _, accuracy in pairs]
            best, mean = max(accuracies), math.fsum(accuracies) / len(pairs)
            chosen = max(pairs, key=lambda pair: pair[0])[1]
            order = float(spearmanr(*zip(*pairs, strict=True)).statistic)
            regrets = best - chosen, best - mean
            rows.append(Regret(network, epochs, title, len(pairs), *regrets, order))
    return rows


def _last_rank(entry: Entry) -> float | None:
    ranks = [rank for rank in entry.curve.get("effective_rank", ()) if rank is not None]
    return ranks[-1] if ranks else None


def _score(criterion: Criterion, entry: Entry) -> float | None:
    """The score of an entry's final encoder, of which a higher one is better."""
    if not all(key in entry.label_free for key in criterion.keys):
        return None
    return criterion.score(math.fsum(entry.label_free[key] for key in criterion.keys))
