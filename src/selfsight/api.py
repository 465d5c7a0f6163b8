"""The commands as Python functions: pretrain, resume, evaluate, compare, load, doctor."""

import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from selfsight import auto_recipe, dist
from selfsight import doctor as doctors
from selfsight.catalog import build_recipe
from selfsight.console import build_table
from selfsight.data import open_source
from selfsight.data.sources.classes import class_words
from selfsight.errors import UserError
from selfsight.nn import Backbone
from selfsight.options import (
    EVAL_DEFAULTS,
    PRETRAIN_DEFAULTS,
    STUDY_DEFAULTS,
    EvalOptions,
    PretrainOptions,
    StudyOptions,
)
from selfsight.recipe import override, to_dict
from selfsight.run_folder import Run, open_run, to_json
from selfsight.runs import compare as comparison
from selfsight.runs import evaluate as evaluation
from selfsight.runs import start_resume
from selfsight.runs.encoders import load_recipe, load_student
from selfsight.studies import find_study, runner
from selfsight.studies.ledger import RESULTS, read_ledger

SAMPLE = 128  # images that the automatic recipe is chosen from


def pretrain(
    data: str | Path, options: PretrainOptions = PRETRAIN_DEFAULTS, /, **changes: Any
) -> Run:
    """Train an encoder on images; returns the run folder.

    Keywords are the fields of PretrainOptions: `pretrain("photos/", method="moco", epochs=50)`.
    """
    options = replace(options, **changes)
    named = options.recipe
    if options.method is not None and named is not None:
        raise UserError("Give --method or --recipe, not both: a recipe names its method.")
    console, device = _console(), auto_recipe.resolve_device(options.device)
    run = Run(Path(options.out) if options.out else _free_folder(str(data), options))
    if options.resume and run.recipe_path.exists():
        return _resume(run, device, console, allow=options.method)
    given: dict[str, Any] = {"epochs": options.epochs, "batch_size": options.batch_size}
    reasons: dict[str, str] = {}
    if named is None:
        source = open_source(data, labels=options.labels, classes=options.classes)
        profile = _profile(doctors.inspect_data(source, sample=SAMPLE))
        recipe, reasons = auto_recipe.build_auto_recipe(
            profile, device, method=options.method, **given
        )
    else:
        recipe = build_recipe(named) if isinstance(named, str) else named
    given |= {"seed": options.seed, "keep_epochs": tuple(options.keep_epochs) or None}
    recipe = override(recipe, given, options.settings)
    recipe, adapted = auto_recipe.adapt_to_device(recipe, device)
    data_settings = replace(
        recipe.data,
        path=str(data),
        classes=class_words(options.classes) or recipe.data.classes,
        labels=options.labels or recipe.data.labels,
    )
    recipe = replace(recipe, data=data_settings)
    _prepare_folder(run, overwrite=options.overwrite)
    start_resume.start_run(recipe, reasons | adapted, run, device, console, automatic=named is None)
    return run


def resume(run: Run | str | Path, *, device: str = "auto", method: str | None = None) -> Run:
    """Resume a run that stopped. A finished run does not change."""
    return _resume(open_run(run), auto_recipe.resolve_device(device), _console(), allow=method)


def evaluate(
    run: Run | str | Path | None = None,
    options: EvalOptions = EVAL_DEFAULTS,
    /,
    *,
    quiet: bool = False,
    **changes: Any,
) -> dict[str, Any]:
    """Evaluate a run's encoder, or any other, and the untrained one; writes results/*.json.

    Keywords are the fields of EvalOptions: `evaluate(run, labeled="labeled/", k=20)`.
    """
    options = replace(options, **changes)
    if (run is None) == (options.backbone is None):
        raise UserError("Give a run folder or --backbone, one of them.")
    if run is not None:
        folder = open_run(run)
        encoder = str(folder.path)
    else:
        encoder = str(options.backbone)
        folder = Run(Path(options.out) if options.out else Path("runs") / _file_name(encoder))
    device = auto_recipe.resolve_device(options.device)
    return evaluation.evaluate(folder, encoder, device, options, quiet=quiet)


def compare(runs: Sequence[Run | str | Path], *, quiet: bool = False) -> list[dict[str, Any]]:
    """Compare runs by their results/*.json: a record for each; writes nothing."""
    folders = [run if isinstance(run, Run) else Run(Path(run)) for run in runs]
    for folder in folders:
        if not folder.results.is_dir():
            raise UserError(
                f"{folder.path} has no results. Give folders that `selfsight evaluate` wrote to."
            )
    records, notes = comparison.compare(folders)
    if not quiet:
        console = Console()
        console.print(build_table(comparison.format_records(records)))
        console.print("\n".join(notes), highlight=False, markup=False)
    return records


def load(run: Run | str | Path, *, device: str = "cpu") -> Backbone:
    """Load the backbone of a run, in evaluation mode: it maps normalized images to features."""
    run = open_run(run)
    student = load_student(run, load_recipe(run), auto_recipe.resolve_device(device))
    return student.backbone.eval()


def doctor(
    data: str | Path, *, device: str = "auto", sample: int = 512, quiet: bool = False
) -> dict[str, Any]:
    """Summarize the data from a sample, with the recipe that pretrain would use."""
    summary = doctors.inspect_data(data, sample=sample)
    profile, torch_device = _profile(summary), auto_recipe.resolve_device(device)
    recipe, reasons = auto_recipe.build_auto_recipe(profile, torch_device)
    if not quiet:
        console = Console()
        console.print(doctors.describe(summary), highlight=False)
        console.print(start_resume.recipe_table(recipe, reasons))
    return asdict(summary) | {"recipe": to_dict(recipe), "reasons": reasons}


def study(
    name: str, options: StudyOptions = STUDY_DEFAULTS, /, *, quiet: bool = False, **changes: Any
) -> list[dict[str, Any]]:
    """Train the arms of a study that the ledger lacks; returns their entries.

    Keywords are the fields of StudyOptions: `study("methods", data="cifar10/", seeds=(0, 1))`.
    """
    options = replace(options, **changes)
    end = None
    if options.minutes is not None:
        end = time.monotonic() - runner.process_seconds() + 60 * options.minutes
    console, device = Console(quiet=quiet), auto_recipe.resolve_device(options.device)
    ledger = Path(options.ledger) if options.ledger else RESULTS
    entries = read_ledger((RESULTS, ledger))
    jobs = runner.plan_jobs(
        find_study(name), options, lambda recipe: auto_recipe.adapt_to_device(recipe, device)[0]
    )
    todo = [job for job in jobs if options.quick or not job.is_done(entries)]
    console.print(
        f"{name} at the scale {options.scale}: {len(todo)} of {len(jobs)} runs to do.",
        highlight=False,
    )
    dist.start(device.type)
    try:
        finished = runner.run_jobs(
            todo,
            device,
            console,
            data=str(options.data or "torchvision:CIFAR10"),
            entries=entries,
            ledger=None if options.quick and not options.ledger else ledger,
            work=Path(options.work),
            end=end,
        )
    finally:
        dist.stop()
    return [to_json(asdict(entry)) for entry in finished]


def _resume(run: Run, device: torch.device, console: Console, *, allow: str | None) -> Run:
    recipe = load_recipe(run, allow=allow)
    recipe, _ = auto_recipe.adapt_to_device(recipe, device)
    start_resume.resume_run(recipe, run, device, console)
    return run


def _prepare_folder(run: Run, *, overwrite: bool) -> None:
    """Check that the folder is empty, or empty it if `overwrite` is set."""
    if dist.local_rank() or not run.path.exists():
        return
    if run.path.is_file():
        raise UserError(f"--out {run.path} is a file; give a folder.")
    if not any(run.path.iterdir()):
        return
    if not overwrite:
        raise UserError(
            f"{run.path} is not empty. Add --resume to resume the run in it, --overwrite to "
            "empty it first, or give another --out."
        )
    if not run.recipe_path.exists():
        raise UserError(
            f"{run.path} holds files but no run (no recipe.json), so --overwrite will not empty "
            "it. Empty it yourself, or give another --out."
        )
    shutil.rmtree(run.path)


def _free_folder(data: str, options: PretrainOptions) -> Path:
    """Choose runs/DATA-METHOD, with a number appended if that folder exists."""
    suffix = options.recipe if isinstance(options.recipe, str) else options.method or "auto"
    name = _file_name(f"{Path(data.split(':')[-1]).stem or 'run'}-{suffix}")
    number, path = 1, Path("runs") / name
    while path.exists():
        number += 1
        path = Path("runs") / f"{name}-{number}"
    return path


def _file_name(name: str) -> str:
    """Replace characters that some file systems do not allow."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name)


def _profile(summary: doctors.DataSummary) -> auto_recipe.DataProfile:
    if not summary.short_side:
        name, why = summary.unreadable[0]
        raise UserError(
            f"None of {summary.sampled} images read from {summary.data} is readable: {name}, for "
            f"one, because {why}. Check the files."
        )
    return auto_recipe.DataProfile(
        count=summary.count, short_side=summary.short_side, channels=summary.channels
    )


def _console() -> Console:
    return Console(stderr=True, quiet=dist.local_rank() != 0)
