"""How well criteria without labels choose among the ledger's recipes, as regret in points."""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from functools import partial
from statistics import fmean
from typing import NamedTuple

from selfsight.evals.select_checkpoint import CRITERIA, Criterion
from selfsight.studies.ledger import Entry


class Regret(NamedTuple):
    """The accuracy that choosing a recipe by a criterion loses, among trainings of equal length."""

    network: str
    epochs: int
    criterion: str
    recipes: int
    regret: float
    """Linear accuracy of the best recipe minus that of the chosen one, in points."""
    random: float
    """The same for a recipe that is chosen at random, on average."""
    correlation: float
    """Spearman's rank correlation of the criterion with the accuracy."""


def list_regrets(
    scale: str, entries: Sequence[Entry], *, without: Collection[str] = ()
) -> list[Regret]:
    """Rows for each network, length and criterion, which needs three recipes or more that have it.

    Recipes are comparable if they have the same images, network and number of epochs; accuracy and
    criterion of one are means over its seeds. Those of the methods `without`, and those that used
    labels in training, are left out. Effective rank "in training" is the last one of the curve.
    """
    from scipy.stats import spearmanr  # half a second to import

    left_out = {"supervised", *without}
    groups = defaultdict[tuple[str, int, int], dict[str, list[Entry]]](lambda: defaultdict(list))
    for entry in entries:
        is_scored = entry.scale == scale and entry.scored_on == "test" and not entry.quick
        if is_scored and entry.results and entry.recipe["method"]["name"] not in left_out:
            alike = groups[entry.network, entry.epochs, entry.images["train"]]
            alike[entry.recipe_hash].append(entry)
    scores: dict[str, Callable[[Entry], float | None]] = {"effective rank in training": _last_rank}
    scores |= {criterion.title: partial(_score, criterion) for criterion in CRITERIA}
    rows = []
    for (network, epochs, _), recipes in sorted(groups.items(), key=lambda group: group[0]):
        for title, score in scores.items():
            means = [mean for seeds in recipes.values() if (mean := _mean(seeds, score))]
            if len(means) < 3:
                continue
            accuracies = [accuracy for _, accuracy in means]
            best = max(accuracies)
            rows.append(
                Regret(
                    network=network,
                    epochs=epochs,
                    criterion=title,
                    recipes=len(means),
                    regret=best - max(means, key=lambda mean: mean[0])[1],
                    random=best - fmean(accuracies),
                    correlation=float(spearmanr(*zip(*means, strict=True)).statistic),
                )
            )
    return rows


def _mean(
    seeds: Sequence[Entry], score: Callable[[Entry], float | None]
) -> tuple[float, float] | None:
    """Mean score and accuracy of the seeds that have both; None if none has."""
    pairs = [(score(entry), entry.accuracy("linear")) for entry in seeds]
    known = [(s, a) for s, a in pairs if s is not None and math.isfinite(s) and a is not None]
    if not known:
        return None
    return fmean(s for s, _ in known), fmean(a for _, a in known)


def _last_rank(entry: Entry) -> float | None:
    ranks = [rank for rank in entry.curve.get("effective_rank", ()) if rank is not None]
    return ranks[-1] if ranks else None


def _score(criterion: Criterion, entry: Entry) -> float | None:
    """The score of an entry's final encoder, of which a higher one is better."""
    if not all(key in entry.label_free for key in criterion.keys):
        return None
    return criterion.score(math.fsum(entry.label_free[key] for key in criterion.keys))
