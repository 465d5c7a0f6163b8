"""Collapse: its symptoms and their limits, and the alarm during training.

Limits come from small experiments (ten classes of photographs, ResNets of 64 and 128 features,
some hundred steps; spread and rank as in feature_statistics). Healthy SimCLR, MoCo and BYOL had
embeddings of spread 0.75 to 0.98 and rank 13 to 28. BYOL without its predictor had spread 0.10 and
falling, and rank 4, although the features before the projector had spread 0.6 and rank 32. MoCo
with a stale queue had rank 2. So the projector's output is checked too.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any, NamedTuple

from selfsight.run_files.json_files import is_finite


class Limit(NamedTuple):
    """Limits below which a measure shows a collapse."""

    low: float  # if it was higher before, and has fallen to half of its highest value
    point: float  # even if the run began there: all images are one point


# Low values alone prove little: MoCo with embeddings of 8 numbers started at a spread of 0.26 and
# a rank of 4, stayed near 0.10 and 2.3, and gained eight points in two epochs; untrained networks
# were seen at 0.11 and 1.8. A run that has collapsed by its first record cannot fall any more, so
# no fall is needed near one point. Features of an untrained ResNet can have a spread of 0.15. Ten
# well-separated classes need about ten directions, and the mean alone is one.
LIMITS = {
    "feature_std": Limit(0.02, 0.02),
    "embedding_std": Limit(0.3, 0.05),
    "effective_rank": Limit(4.0, 1.5),
    "embedding_rank": Limit(4.0, 1.5),
}
FALLEN = 0.5  # share of the highest value so far
# DINO's embeddings fall from a spread of 0.83 to 0.4 or less in a run that learns, and rise again,
# while their rank stays at 0.6 of its highest value. Where all images become one point, the rank
# is also low or falls with the spread, or the spread falls to 0.
RANK_OF = {"feature_std": "effective_rank", "embedding_std": "embedding_rank"}
SPREAD_ALONE = 0.1  # below this, a fallen spread needs no other symptom
RECENT = 5  # records whose median is the current value
# DINO starts near one point and rises. In the first half of a run the alarm needs a fall.
LATE = 0.5  # share of the epochs


class Alarm(NamedTuple):
    """An alarm: a collapse or its end."""

    event: str
    sentence: str


class Measures:
    """Medians of the last few records, so that one unusual batch does not decide."""

    def __init__(self, records: Iterable[Mapping[str, Any]] = ()) -> None:
        self.recent = {key: deque[float](maxlen=RECENT) for key in LIMITS}
        self.current: dict[str, float] = {}
        self.highest: dict[str, float] = {}  # of the medians so far
        for record in records:
            self.update(record)

    def update(self, record: Mapping[str, Any]) -> None:
        """Add a new record."""
        for key, recent in self.recent.items():
            value: Any = record.get(key)
            if is_finite(value):
                recent.append(float(value))
                self.current[key] = median(recent)
                self.highest[key] = max(self.highest.get(key, 0.0), self.current[key])


def lower_limits(
    batch_size: int | None, embedding_dim: int | None, classes: int | None = None
) -> dict[str, Limit]:
    """Lower the limits of ranks for small batches and narrow embeddings, which cannot reach them.

    An encoder that learned from labels cannot reach them either: the features of each class become
    one point, so that few classes use few directions.
    """
    most: dict[str, float] = dict.fromkeys(LIMITS, math.inf)
    most["effective_rank"] = min(batch_size or math.inf, classes or math.inf)
    most["embedding_rank"] = min(most["effective_rank"], embedding_dim or math.inf)
    return {key: Limit(*(min(x, most[key] / 3) for x in limit)) for key, limit in LIMITS.items()}


def find_symptom(
    current: Mapping[str, float],
    highest: Mapping[str, float],
    limits: Mapping[str, Limit],
    *,
    fallen_only: bool = False,
) -> str | None:
    """Return the measure that shows a collapse; None if none does. Missing measures are ignored.

    With `fallen_only`, a run that started near one point is not judged.
    """
    for key, (low, point) in limits.items():
        if (value := current.get(key)) is None or value >= low:
            continue
        high = highest.get(key, value)
        fell = high >= low and value < FALLEN * high
        rank = RANK_OF.get(key, "")
        if fell and value >= SPREAD_ALONE and rank in current:
            narrow = max(limits[rank].low, FALLEN * highest.get(rank, math.inf))
            fell = current[rank] < narrow
        if fell or (value < point and not fallen_only):
            return key
    return None


def describe_symptom(key: str, value: float, embedding_dim: int | None) -> str:
    """Describe a collapse, as a part of a sentence."""
    what = "features" if key in ("feature_std", "effective_rank") else "embeddings"
    if key.endswith("_std"):
        number = f"{value:.3f}" if what == "features" else f"{value:.2f}"
        return f"the {what} of all images are nearly one point (spread {number}, where 1 is even)"
    of = f" of {embedding_dim}" if what == "embeddings" and embedding_dim else ""
    return (
        f"the {what} are spread over only about {value:.1f}{of} directions (dimensional collapse)"
    )


class CollapseAlarm:
    """Follows the records of a run; reports once when it collapses, and once when it recovers."""

    def __init__(
        self,
        *,
        epochs: int,
        batch_size: int,
        embedding_dim: int | None,
        classes: int | None = None,
        past: Iterable[Any] = (),
    ) -> None:
        self.epochs, self.embedding_dim = epochs, embedding_dim
        self.limits = lower_limits(batch_size, embedding_dim, classes)
        self.measures = Measures()
        self.since: int | None = None  # step at which the alarm was raised
        self.healthy = 0  # records in a row without a symptom, since then
        for record in past:  # of a run that is resumed: said before
            self.update(record)

    def update(self, record: Mapping[str, Any]) -> Alarm | None:
        """Add a new record; return an alarm, if there is one."""
        self.measures.update(record)
        recent = self.measures.recent
        enough = {k: v for k, v in self.measures.current.items() if len(recent[k]) == RECENT}
        if not enough:
            return None
        early = self.since is None and record["epoch"] < LATE * self.epochs
        symptom = find_symptom(enough, self.measures.highest, self.limits, fallen_only=early)
        step = record["step"]
        if self.since is None:
            if symptom is None:
                return None
            self.since, self.healthy = step, 0
            what = describe_symptom(symptom, enough[symptom], self.embedding_dim)
            return Alarm("collapsed", f"Collapse at step {step}: {what}. Training continues.")
        self.healthy = self.healthy + 1 if symptom is None else 0
        if self.healthy < RECENT:
            return None
        since, self.since = self.since, None
        return Alarm("recovered", f"The collapse of step {since} is over at step {step}.")
