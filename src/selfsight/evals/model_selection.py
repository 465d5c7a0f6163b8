"""The best of several checkpoints without labels, and why, in words."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from selfsight.errors import UserError
from selfsight.run_folder import Run

LEAST = 0.1  # share of the best effective rank below which features have collapsed


@dataclass(frozen=True)
class Criterion:
    """A published measure, the sum of the numbers of these names; more `worth` is better."""

    name: str
    words: str
    source: str
    parts: tuple[str, ...]
    worth: Callable[[float], float] = float


CRITERIA = (
    Criterion("lidar", "LiDAR", "arXiv:2312.04000", ("lidar",)),
    Criterion("effective_rank", "effective rank", "arXiv:2210.02885", ("effective_rank",)),
    Criterion(
        "alpha", "decay (best near 1)", "arXiv:2202.05808", ("alpha",), lambda a: -abs(a - 1)
    ),
    Criterion(
        "spread",
        "alignment + uniformity (best low)",
        "arXiv:2005.10242",
        ("alignment", "uniformity"),
        lambda v: -v,
    ),
)


@dataclass(frozen=True)
class CheckpointChoice:
    """Which record, the mean of its places over the measures (1 is first), and why."""

    index: int
    name: str
    places: dict[str, int]
    sentence: str


def select_checkpoint(
    records: Sequence[Mapping[str, float | None]],
    names: Sequence[str] = (),
    *,
    layer: Literal["backbone", "projector"] = "backbone",
) -> CheckpointChoice:
    """The record with the best mean place over the four criteria.

    Records hold one checkpoint's numbers each, in the order of training; a criterion counts if all
    sound records have it. Records whose numbers are not finite, or whose effective rank is less
    than a tenth of the best, have collapsed and are out. Of equals LiDAR, then the later, wins.
    """
    names = list(names) or [f"checkpoint {i + 1}" for i in range(len(records))]
    measured = [_of(layer, record) for record in records]
    keys = [c for c in CRITERIA if any(c.name in record for record in measured)]
    if not keys:
        raise UserError(
            "There is nothing to choose by: expected are records with one or more of "
            "lidar, effective_rank, alpha, or alignment and uniformity. Run the analysis on each "
            "checkpoint first."
        )
    sound = _sound(measured)
    if not sound:
        raise UserError(
            "Every checkpoint has collapsed or has numbers that are not finite, so none can be "
            "chosen. Look at the run's verdict and train again."
        )
    used = [c for c in keys if all(c.name in measured[i] for i in sound)]
    if not used:
        raise UserError(
            "The checkpoints share no measure, so they cannot be compared. Run the same analysis "
            "on each."
        )
    places = {i: {c.name: _place(c, measured, sound, i) for c in used} for i in sound}

    def rank(i: int) -> tuple[int, ...]:
        return (sum(places[i].values()), *(places[i][c.name] for c in used), -i)

    best = min(sound, key=rank)
    return CheckpointChoice(
        best, names[best], places[best], _why(best, names, measured, sound, places, used)
    )


def select_run(
    runs: Sequence[Run], *, layer: Literal["backbone", "projector"] = "backbone"
) -> CheckpointChoice:
    """The best of several run folders by their results/analysis.json."""
    records = []
    for run in runs:
        found = run.result("analysis")
        if found is None:
            raise UserError(
                f"{run.path} has no results/analysis.json. Write it with: selfsight evaluate "
                f"{run.path} --protocol analysis"
            )
        records.append({k: v for k, v in found.items() if v is None or isinstance(v, float)})
    return select_checkpoint(records, [str(run.path) for run in runs], layer=layer)


def _of(layer: str, record: Mapping[str, float | None]) -> dict[str, float]:
    """The criteria of one layer by name; None is a number that was not finite."""
    prefix = "projector_" if layer == "projector" else ""
    found = {}
    for criterion in CRITERIA:
        parts = [prefix + part for part in criterion.parts]
        if all(part in record for part in parts):
            values = [record[part] for part in parts]
            found[criterion.name] = math.fsum(math.nan if v is None else v for v in values)
    return found


def _sound(records: Sequence[Mapping[str, float]]) -> list[int]:
    numbers = [[r[c.name] for c in CRITERIA if c.name in r] for r in records]
    finite = [i for i, values in enumerate(numbers) if values and all(map(math.isfinite, values))]
    ranks = {i: records[i].get("effective_rank", 1.0) for i in finite}
    return [i for i in finite if ranks[i] >= LEAST * max(ranks.values())]


def _place(
    criterion: Criterion, records: Sequence[Mapping[str, float]], among: list[int], i: int
) -> int:
    own = criterion.worth(records[i][criterion.name])
    return 1 + sum(criterion.worth(records[j][criterion.name]) > own for j in among)


def _why(
    best: int,
    names: Sequence[str],
    records: Sequence[Mapping[str, float]],
    sound: list[int],
    places: dict[int, dict[str, int]],
    used: list[Criterion],
) -> str:
    """First where it is first, then where it is not, and what was left out."""
    said = [
        f"{c.words} {records[best][c.name]:.3g}, "
        + ("the best" if places[best][c.name] == 1 else f"place {places[best][c.name]}")
        for c in used
    ]
    words = f"{names[best]} of {len(records)}: {'; '.join(said)}."
    rival = [c for c in used if places[best][c.name] > 1]
    if rival:
        first = next(i for i in sound if places[i][rival[0].name] == 1)
        words += f" The measures disagree: by {rival[0].words} alone it would be {names[first]}."
    if len(sound) < len(records):
        out = [names[i] for i in range(len(records)) if i not in sound]
        words += f" Collapsed or not finite, and left out: {', '.join(out)}."
    return words
