"""Collapse: its symptoms with their thresholds, and the alarm while a run goes on.

Thresholds come from small experiments (ten classes of photographs, ResNets of 64 and 128 features,
some hundred steps; spread and rank as in evals.spectrum). Healthy SimCLR, MoCo and BYOL had
embeddings of spread 0.75 to 0.98 and rank 13 to 28. BYOL without its predictor had spread 0.10 and
falling, and rank 4, although the features before the projector had spread 0.6 and rank 32. MoCo
with a stale queue had rank 2. So the projector's output is checked too.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any, NamedTuple

# Features of an untrained ResNet already have a spread of only 0.15 to 0.25 (of 1), so that only
# a value near zero proves a collapse.
ONE_POINT_FEATURES = 0.02
# Embeddings of a healthy run stay well above 0.5. MoCo can start near 0.25 and rise, so between
# these two values it is a collapse only if the spread was higher before.
ONE_POINT_EMBEDDINGS = 0.15
NARROW_EMBEDDINGS = 0.3
FALLEN = 0.5  # share of the highest value so far
# Effective rank. Ten well-separated classes need about ten directions, and the mean alone is one.
# The rank of a batch of n samples is at most n.
FEW_DIRECTIONS = 4.0

RECENT = 5  # records whose median is the current value
# SiMo starts at an embedding spread of 0.14 and rank 4, and rises to 0.98. In the first half of a
# run the alarm therefore needs a fall.
LATE = 0.5  # share of the epochs
KEYS = ("feature_std", "effective_rank", "embedding_std", "embedding_rank")


class Alarm(NamedTuple):
    """What the alarm says: a collapse or its end."""

    event: str
    sentence: str


def is_one_point(embedding_std: float | None, highest: float | None) -> bool:
    """Return whether embeddings of this spread have collapsed to a point."""
    if embedding_std is None:
        return False
    fell = embedding_std < FALLEN * (highest or 0)
    return embedding_std < (NARROW_EMBEDDINGS if fell else ONE_POINT_EMBEDDINGS)


def is_low_rank(rank: float | None, batch_size: int | None) -> bool:
    """Return whether a rank is that of a dimensional collapse."""
    most = batch_size or math.inf  # a small batch cannot have a high rank
    return rank is not None and rank < min(FEW_DIRECTIONS, most / 3)


def describe_collapse(
    *,
    feature_std: float | None,
    effective_rank: float | None,
    embedding_std: float | None,
    embedding_rank: float | None,
    highest_embedding_std: float | None,
    embedding_dim: int | None,
    batch_size: int | None,
) -> str | None:
    """Describe what has collapsed; None if nothing has. What is None is not judged."""
    if feature_std is not None and feature_std < ONE_POINT_FEATURES:
        return (
            f"the features of all images are nearly one point (spread {feature_std:.3f}, where 1 "
            "is even)"
        )
    if is_one_point(embedding_std, highest_embedding_std):
        return (
            f"the embeddings of all images are nearly one point (spread {embedding_std:.2f}, "
            "where 1 is even)"
        )
    if is_low_rank(effective_rank, batch_size):
        return (
            f"the features are spread over only about {effective_rank:.1f} directions "
            "(dimensional collapse)"
        )
    if is_low_rank(embedding_rank, batch_size):
        of = f" of {embedding_dim}" if embedding_dim else ""
        return (
            f"the embeddings are spread over only about {embedding_rank:.1f}{of} directions "
            "(dimensional collapse)"
        )
    return None


class CollapseAlarm:
    """Follows the records of a run; speaks once when it collapses, and once when that is over."""

    def __init__(
        self, *, epochs: int, batch_size: int, embedding_dim: int | None, past: Iterable[Any] = ()
    ) -> None:
        self.epochs, self.batch_size, self.embedding_dim = epochs, batch_size, embedding_dim
        self.recent = {key: deque[float](maxlen=RECENT) for key in KEYS}
        self.highest = dict.fromkeys(KEYS, 0.0)
        self.since: int | None = None  # step at which the alarm was raised
        self.healthy = 0  # records in a row without a symptom, since then
        for record in past:  # of a run that is resumed: said before
            self.update(record)

    def update(self, record: Mapping[str, Any]) -> Alarm | None:
        """Take a new record; return what is to be said, if anything."""
        for key in KEYS:
            if isinstance(value := record.get(key), int | float):
                self.recent[key].append(value)
        enough = {k: median(v) for k, v in self.recent.items() if len(v) == RECENT}
        if not enough:
            return None
        self.highest = {k: max(v, enough.get(k, 0.0)) for k, v in self.highest.items()}
        symptom, step = self._symptom(enough, record["epoch"]), record["step"]
        if self.since is None:
            if symptom is None:
                return None
            self.since, self.healthy = step, 0
            return Alarm("collapsed", f"Collapse at step {step}: {symptom}. Training goes on.")
        self.healthy = self.healthy + 1 if symptom is None else 0
        if self.healthy < RECENT:
            return None
        since, self.since = self.since, None
        return Alarm("recovered", f"The collapse of step {since} is over at step {step}.")

    def _symptom(self, current: dict[str, float], epoch: float) -> str | None:
        if self.since is None and epoch < LATE * self.epochs:
            current = {k: v for k, v in current.items() if v < FALLEN * self.highest[k]}
        return describe_collapse(
            **{key: current.get(key) for key in KEYS},
            highest_embedding_std=self.highest["embedding_std"],
            embedding_dim=self.embedding_dim,
            batch_size=self.batch_size,
        )
