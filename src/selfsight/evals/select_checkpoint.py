"""Select the best of several checkpoints without labels, and explain the choice."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from selfsight.command_hint import write_command
from selfsight.errors import UserError
from selfsight.run_files.run_folder import Run

MIN_RANK_SHARE = 0.1  # of the best effective rank; below it features have collapsed


@dataclass(frozen=True)
class Criterion:
    """A published criterion: the sum of the numbers `keys`; a higher `score` of it is better."""

    name: str
    title: str
    source: str
    keys: tuple[str, ...]
    score: Callable[[float], float] = float


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
    """The selected record, its rank by each criterion (1 is best), and the reason."""

    index: int
    name: str
    ranks: dict[str, int]
    sentence: str


def select_checkpoint(
    records: Sequence[Mapping[str, float | None]],
    names: Sequence[str] = (),
    *,
    layer: Literal["backbone", "projector"] = "backbone",
) -> CheckpointChoice:
    """Select the record with the best mean rank over the criteria.

    Records are the numbers of one checkpoint each, in the order of training. A criterion is used if
    all records have it. Records with numbers that are not finite, or with an effective rank below a
    tenth of the best, have collapsed and are excluded. Ties go to LiDAR, then to the later record.
    """
    names = list(names) or [f"checkpoint {i + 1}" for i in range(len(records))]
    measured = [_criteria_values(layer, record) for record in records]
    known = [c for c in CRITERIA if any(c.name in record for record in measured)]
    if not known:
        raise UserError(
            "The records have no criterion: expected are one or more of "
            "lidar, effective_rank, alpha, or alignment and uniformity. Run the analysis on each "
            "checkpoint first."
        )
    usable = _usable(measured)
    if not usable:
        raise UserError(
            "Every checkpoint has collapsed or has numbers that are not finite, so none can be "
            "selected. Look at the run's verdict and train again."
        )
    used = [c for c in known if all(c.name in measured[i] for i in usable)]
    if not used:
        raise UserError(
            "The checkpoints have no criterion in common. Run the same analysis on each."
        )
    ranks = {i: {c.name: _rank(c, measured, usable, i) for c in used} for i in usable}

    def rank(i: int) -> tuple[int, ...]:
        return (sum(ranks[i].values()), *(ranks[i][c.name] for c in used), -i)

    best = min(usable, key=rank)
    return CheckpointChoice(
        best, names[best], ranks[best], _explain(best, names, measured, usable, ranks, used)
    )


def select_run(
    runs: Sequence[Run], *, layer: Literal["backbone", "projector"] = "backbone"
) -> CheckpointChoice:
    """Select the best of several runs by their results/analysis.json."""
    records = []
    for run in runs:
        result = run.result("analysis")
        if result is None:
            raise UserError(
                f"{run.path} has no results/analysis.json. Write it with: "
                f"{write_command('evaluate', run, '--protocol', 'analysis')}"
            )
        records.append({k: v for k, v in result.items() if v is None or isinstance(v, float)})
    return select_checkpoint(records, [str(run.path) for run in runs], layer=layer)


def _criteria_values(layer: str, record: Mapping[str, float | None]) -> dict[str, float]:
    """Values of the criteria for one layer; None means not finite."""
    prefix = "projector_" if layer == "projector" else ""
    values = {}
    for criterion in CRITERIA:
        keys = [prefix + key for key in criterion.keys]
        if all(key in record for key in keys):
            terms = [record[key] for key in keys]
            values[criterion.name] = math.fsum(math.nan if v is None else v for v in terms)
    return values


def _usable(records: Sequence[Mapping[str, float]]) -> list[int]:
    numbers = [[r[c.name] for c in CRITERIA if c.name in r] for r in records]
    finite = [i for i, values in enumerate(numbers) if values and all(map(math.isfinite, values))]
    ranks = {i: records[i].get("effective_rank", 1.0) for i in finite}
    return [i for i in finite if ranks[i] >= MIN_RANK_SHARE * max(ranks.values())]


def _rank(
    criterion: Criterion, records: Sequence[Mapping[str, float]], among: list[int], i: int
) -> int:
    value = criterion.score(records[i][criterion.name])
    return 1 + sum(criterion.score(records[j][criterion.name]) > value for j in among)


def _explain(
    best: int,
    names: Sequence[str],
    records: Sequence[Mapping[str, float]],
    usable: list[int],
    ranks: dict[int, dict[str, int]],
    used: list[Criterion],
) -> str:
    """Describe the ranks of the best record, where criteria disagree, and excluded records."""
    parts = [
        f"{c.title} {records[best][c.name]:.3g}, "
        + ("the best" if ranks[best][c.name] == 1 else f"rank {ranks[best][c.name]}")
        for c in used
    ]
    text = f"{names[best]} of {len(records)}: {'; '.join(parts)}."
    disagreeing = [c for c in used if ranks[best][c.name] > 1]
    if disagreeing:
        first = next(i for i in usable if ranks[i][disagreeing[0].name] == 1)
        text += (
            f" The criteria disagree: by {disagreeing[0].title} alone it would be {names[first]}."
        )
    if len(usable) < len(records):
        out = [names[i] for i in range(len(records)) if i not in usable]
        text += f" Excluded as collapsed or not finite: {', '.join(out)}."
    return text
