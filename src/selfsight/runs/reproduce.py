"""Repeat a run from its folder, and compare the two record by record."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console

from selfsight import dist
from selfsight.errors import DivergedError, UserError
from selfsight.recipe import Recipe, list_differences, to_dict
from selfsight.run_files.json_files import is_finite, to_json, write_json
from selfsight.run_files.run_folder import Run
from selfsight.runs.environment import compare_environments, describe_environment
from selfsight.runs.open_run_images import (
    check_local,
    describe_other_images,
    fingerprint_everywhere,
    open_recipe_images,
    open_recipe_source,
)
from selfsight.train import checkpoint
from selfsight.train.online_eval import build_online_knn
from selfsight.train.pretrain import pretrain

# Differ in every run.
TIMES = ("time", "first_step", "images_per_second", "data_wait", "compiled_from_step")


class Difference(NamedTuple):
    """The first value in which two logs differ."""

    step: int
    field: str
    before: Any
    after: Any


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """Result of comparing a repeated run with the original."""

    run: str
    outcome: str
    """bit-equal, within (the tolerance) or differs."""
    passed: bool
    steps: int
    """Last step that was compared."""
    records: int
    """Records that both logs have."""
    weights: str
    """equal, differ or not compared: the last checkpoints."""
    first: Difference | None
    largest: float
    """Largest relative difference of a number in the logs."""
    warnings: tuple[str, ...]
    """What differs in the environment, by name."""
    sentence: str


def reproduce_run(
    run: Run,
    recipe: Recipe,
    adapted: Recipe,
    device: torch.device,
    console: Console,
    *,
    out: Path,
    steps: int | None,
    tolerance: float,
    trust: bool = False,
) -> Reproduction:
    """Train a run again in the folder `out`, and compare the logs and the last checkpoints.

    `adapted` is the recipe for this device. The run is repeated up to its last record, or for the
    first `steps` only.
    """
    saved = run.saved_recipe()
    logged = run.records()
    if not logged:
        raise UserError(f"{run.path} has no records in its log, so there is nothing to compare.")
    end = logged[-1]["step"] if steps is None else min(steps, logged[-1]["step"])
    logged = [record for record in logged if record["step"] <= end]
    if not logged:
        raise UserError(f"The log of {run.path} has no record in its first {end} steps.")
    check_local(run, recipe, trust=trust)
    source = open_recipe_source(adapted)
    warnings = compare_environments(saved, describe_environment(device))
    warnings += [
        f"{name} was {before} and is {after}"
        for name, before, after in list_differences(to_dict(recipe), to_dict(adapted))
    ]
    if other_images := describe_other_images(run, fingerprint_everywhere(recipe, source)):
        warnings.append(f"the images: {other_images}")
    if changed := [e for e in run.events() if e["event"] == "resumed" and e.get("differs")]:
        warnings += [f"at step {e['step']} {text}" for e in changed for text in e["differs"]]
    for text in warnings:
        console.print(f"Differs: {text}.", soft_wrap=True)
    threads = torch.get_num_threads()
    images, again = open_recipe_images(adapted, device, console, source), Run(out)
    dist.on_first(lambda: write_json(again.recipe_path, to_json(saved)))
    if recipe.start.name:
        dist.on_first(lambda: shutil.copyfile(run.start_weights, again.start_weights))
    diverged = ""
    try:
        # Sums of a CPU depend on the number of threads that compute them.
        torch.set_num_threads(_saved_threads(saved) or threads)
        knn = build_online_knn(adapted, images)
        pretrain(
            adapted, again, images, device, knn=knn, console=console, until=end, list_groups=False
        )
    except DivergedError as error:
        diverged = str(error)
    finally:
        torch.set_num_threads(threads)

    def compare() -> tuple[int, Difference | None, float, str]:
        repeated = again.records()
        weights = compare_weights(run, again) if steps is None else "not compared"
        return len(repeated), *compare_logs(logged, repeated), weights

    count, first, largest, weights = dist.on_first(compare)  # which has written them
    equal = first is None and weights != "differ"
    within = not diverged and largest <= tolerance and count >= len(logged)
    outcome = "bit-equal" if equal else "within" if within else "differs"
    return Reproduction(
        run=str(run.path),
        outcome=outcome,
        passed=outcome != "differs",
        steps=end,
        records=len(logged),
        weights=weights,
        first=first,
        largest=largest,
        warnings=tuple(warnings),
        sentence=_describe(outcome, end, first, largest, weights, diverged),
    )


def compare_logs(
    logged: Sequence[Mapping[str, Any]], repeated: Sequence[Mapping[str, Any]]
) -> tuple[Difference | None, float]:
    """Find the first value that differs, and the largest relative difference of a number."""
    by_step = {record["step"]: record for record in repeated}
    first, largest = None, 0.0
    for record in logged:
        again = by_step.get(record["step"], {})
        for field in record:
            before, after = record[field], again.get(field)
            if field in TIMES or before == after:
                continue
            first = first or Difference(record["step"], field, before, after)
            largest = max(largest, _relative(before, after))
    return first, largest


def compare_weights(run: Run, again: Run) -> str:
    """Compare the last checkpoints: equal to the bit, differ, or not compared."""
    saved = [checkpoint.load(one) if one.checkpoints.is_dir() else None for one in (run, again)]
    if saved[0] is None or saved[1] is None or saved[0]["step"] != saved[1]["step"]:
        return "not compared"
    before, after = (state["method"] for state in saved if state is not None)
    same = before.keys() == after.keys()
    return "equal" if same and all(torch.equal(before[k], after[k]) for k in before) else "differ"


def _saved_threads(saved: Mapping[str, Any]) -> int | None:
    """Threads of the run; None if it did not record a sensible number."""
    environment = saved.get("environment")
    threads = environment.get("threads") if isinstance(environment, Mapping) else None
    return threads if isinstance(threads, int) and 1 <= threads <= 1024 else None


def _relative(before: Any, after: Any) -> float:
    if not (is_finite(before) and is_finite(after)):
        return float("inf")
    return float(abs(before - after) / max(abs(before), abs(after)))


def _describe(
    outcome: str, end: int, first: Difference | None, largest: float, weights: str, diverged: str
) -> str:
    if diverged:
        return f"The repeated run diverged, and the original did not by step {end}: {diverged}"
    if outcome == "bit-equal":
        also = " and the weights at the end" if weights == "equal" else ""
        return f"Bit-equal: every number of the log up to step {end}{also}."
    if first is None:
        return f"The logs are equal up to step {end}, and the weights of the checkpoints differ."
    where = f"{first.field} was {first.before} and is {first.after}"
    if outcome == "within":
        return (
            f"Equal within {largest:.2g} up to step {end}; the first difference is at step "
            f"{first.step}: {where}."
        )
    return (
        f"Differs from step {first.step} of log.jsonl on: {where}. "
        f"The largest difference is {largest:.2g}."
    )
