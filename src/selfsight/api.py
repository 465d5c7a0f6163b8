"""The commands as Python functions: pretrain, resume, evaluate, compare, load, export, doctor."""

import contextlib
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, overload

import torch
from rich.console import Console

from selfsight import dist, report_page
from selfsight.adaptation.try_arms import adapt as adapt
from selfsight.check_settings import check_setting
from selfsight.data import data_summary
from selfsight.data.loader import check_image_count
from selfsight.device import adapt_to_device, resolve_device
from selfsight.encoder_api import classify as classify
from selfsight.encoder_api import embed as embed
from selfsight.encoder_api import explore as explore
from selfsight.encoder_api import export as export
from selfsight.encoder_api import load as load
from selfsight.encoder_api import load_classifier as load_classifier
from selfsight.encoder_api import search as search
from selfsight.encoders.init_encoder import import_start
from selfsight.encoders.load_encoder import load_recipe
from selfsight.errors import UserError, quote_word, suggest
from selfsight.options.eval_options import EVAL_DEFAULTS, EvalOptions
from selfsight.options.parse_flags import change_options
from selfsight.options.pretrain_options import (
    DOCTOR_DEFAULTS,
    PRETRAIN_DEFAULTS,
    DoctorOptions,
    PretrainOptions,
)
from selfsight.options.report_options import REPORT_DEFAULTS, ReportOptions
from selfsight.options.study_options import REPRODUCE_DEFAULTS, ReproduceOptions
from selfsight.recipe import Recipe, to_dict
from selfsight.recipe_from_options import (
    build_pretrain_recipe,
    check_same_settings,
    import_outside_code,
    profile_data,
)
from selfsight.run_files.json_files import explain_write_errors
from selfsight.run_files.run_folder import LOCK, Run, open_run
from selfsight.runs import compare_runs as comparison
from selfsight.runs import evaluate as evaluation
from selfsight.runs import new_run_folder, run_lock, start_or_resume
from selfsight.runs import replay as replays
from selfsight.runs import reproduce as reproduction
from selfsight.runs.slurm_script import slurm_script
from selfsight.runs.tensorboard_wandb import LogTracker, check_tracker
from selfsight.runs.train_seeds import train_seeds
from selfsight.stopwatch import Stopwatch
from selfsight.studies import ARMS
from selfsight.studies.run_study import reproduce_arm
from selfsight.studies.run_study import study as study
from selfsight.terminal.console import build_table, open_console
from selfsight.train.memory_forecast import foresee_memory
from selfsight.vectors.encoder_folders import check_one_encoder
from selfsight.vectors.serve_report import serve_report


@overload
def pretrain(
    data: str | Path, options: PretrainOptions = ..., /, *, seeds: Sequence[int], **changes: Any
) -> list[Run]: ...
@overload
def pretrain(data: str | Path, options: PretrainOptions = ..., /, **changes: Any) -> Run: ...
def pretrain(
    data: str | Path,
    options: PretrainOptions = PRETRAIN_DEFAULTS,
    /,
    *,
    began: float | None = None,
    **changes: Any,
) -> Run | list[Run]:
    """Train an encoder on images; return the run folder, or one for each of several seeds.

    Keywords are the options that `selfsight pretrain --help` explains: `pretrain("photos/",
    method="moco", epochs=50)`. `began` is the start of the process by the monotonic clock, for
    seconds.jsonl.

    >>> run = selfsight.pretrain("photos", epochs=1, batch_size=8, device="cpu", method="moco",
    ...     **{"optim.lr": 0.01, "method.temperature": 0.1})
    """
    clock = Stopwatch(began)
    check_setting("data", data, str | Path)
    options = change_options(options, changes)
    device = resolve_device(options.device)
    check_tracker(options.track)
    if options.seeds:
        return train_seeds(
            str(data),
            options,
            device,
            lambda one: _pretrain(data, one, device, Stopwatch()),
            _console(),
        )
    if options.sbatch is not None:
        return _write_sbatch(data, options, device)
    return _pretrain(data, options, device, clock)


def _pretrain(
    data: str | Path, options: PretrainOptions, device: torch.device, clock: Stopwatch
) -> Run:
    # Settings of the recipe are compared by name once it is built.
    settings = {"command": "pretrain"} | vars(replace(options, recipe=None, settings=()))
    with dist.process_group(device.type, settings):
        folder = dist.on_first(lambda: new_run_folder.choose_folder(str(data), options))
        run = Run(folder, LogTracker(options.track, folder).add if options.track else None)
        with run_lock.lock_run(run):
            if options.resume and dist.on_first(run.recipe_path.exists):
                recipe = load_recipe(run, trust=import_outside_code(options, run))
                check_same_settings(run, recipe, data, options, device)
                # The command has DATA.
                return _resume(run, recipe, device, clock, trust=True)
            dist.on_first(lambda: new_run_folder.check_folder(run, overwrite=options.overwrite))
            start = import_start(options)
            console = _console()
            recipe, reasons = build_pretrain_recipe(data, options, device, start, console=console)
            automatic = options.recipe is None
            start_or_resume.start_run(
                recipe, reasons, run, device, console, clock, automatic=automatic, start=start
            )
    return run


def resume(
    run: Run | str | Path, *, device: str = "auto", trust: bool = False, began: float | None = None
) -> Run:
    """Resume a run that stopped. A finished run does not change.

    `trust` allows its recipe to run code from outside selfsight and to reach a network.

    >>> run = selfsight.resume(run, device="cpu")
    """
    clock = Stopwatch(began)
    run, torch_device = open_run(run), resolve_device(device)
    settings = {"command": "resume", "run": run.path.name}
    with dist.process_group(torch_device.type, settings), run_lock.lock_run(run):
        recipe = load_recipe(run, trust=trust)
        return _resume(run, recipe, torch_device, clock, trust=trust)


def replay(
    run: Run | str | Path,
    *,
    step: int | None = None,
    device: str = "auto",
    trust: bool = False,
    quiet: bool = False,
) -> dict[str, Any]:
    """Repeat a run from the nearest checkpoint to a step, and find its first non-finite value.

    The default step is the last one that was skipped, or at which the run diverged.

    >>> found = selfsight.replay(run, step=3, device="cpu")
    """
    folder, torch_device = open_run(run), resolve_device(device)
    recipe, _ = adapt_to_device(load_recipe(folder, trust=trust), torch_device)
    console = open_console(stderr=True, quiet=quiet)
    found = replays.replay_run(folder, recipe, torch_device, console, step=step, trust=trust)
    if not quiet:
        lines = (found.sentence, replays.describe_images(found))
        open_console().print(*lines, sep="\n", soft_wrap=True)
    return asdict(found)


def evaluate(
    run: Run | str | Path | None = None,
    options: EvalOptions = EVAL_DEFAULTS,
    /,
    *,
    quiet: bool = False,
    **changes: Any,
) -> dict[str, Any]:
    """Evaluate a run's encoder, or any other, beside the untrained one; write results/*.json.

    Keywords are the options that `selfsight evaluate --help` explains; --protocol is `protocols`:
    `evaluate(run, labeled="labeled/", k=20)`.

    >>> results = selfsight.evaluate(run, labeled="photos", protocols=["knn"], k=3, device="cpu")
    >>> results["knn"]["accuracy"] > 0
    True
    """
    options = change_options(options, changes)
    check_one_encoder(run, options)
    if run is not None:
        folder = open_run(run)
        encoder = str(folder.path)
    else:
        encoder = str(options.backbone)
        folder = Run(Path(options.out or Path("runs") / new_run_folder.file_name(encoder)))
    device = resolve_device(options.device)
    return evaluation.evaluate(folder, encoder, device, options, quiet=quiet)


def compare(runs: Sequence[Run | str | Path], *, quiet: bool = False) -> list[dict[str, Any]]:
    """Compare runs by their results/*.json; return a record for each and write nothing.

    >>> records = selfsight.compare([run])
    """
    folders = [run if isinstance(run, Run) else Run(Path(run)) for run in runs]
    for folder in folders:
        if not folder.results.is_dir():
            raise UserError(
                f"{folder.path} has no results. Give folders that `selfsight evaluate` wrote to."
            )
    found = comparison.compare(folders)
    if not quiet:
        console = open_console()
        console.print(build_table(comparison.format_records(found.records)))
        if found.spreads:
            console.print(build_table(comparison.tabulate_seeds(found.spreads), title="over seeds"))
        console.print(*found.notes, sep="\n")
    return found.records


def report(
    run: Run | str | Path | Sequence[Run | str | Path],
    options: ReportOptions = REPORT_DEFAULTS,
    /,
    **changes: Any,
) -> Path:
    """Write one self-contained HTML page about one or several runs; return its path.

    Keywords are the options that `selfsight report --help` explains: `report(run, serve=True)`
    serves the page on this machine until it is interrupted.

    >>> page = selfsight.report(run)
    """
    options = change_options(options, changes)
    if not isinstance(run, Run | str | Path):
        if options.serve:
            raise UserError("serve needs exactly one run. Name one.")
        runs = [one if isinstance(one, Run) else Run(Path(one)) for one in run]
        page, problems = report_page.write_several(runs, options.out)
        open_console(stderr=True).print(*problems, sep="\n", soft_wrap=True)
        return page
    folder = open_run(run)
    page = report_page.write(folder, options.out)
    if options.serve:
        serve_report(folder, resolve_device(options.device), options)
    return page


def doctor(
    data: str | Path,
    options: DoctorOptions = DOCTOR_DEFAULTS,
    /,
    *,
    quiet: bool = False,
    **changes: Any,
) -> dict[str, Any]:
    """Summarize the data from a sample, with the recipe that pretrain would use.

    Keywords are the options that `selfsight doctor --help` explains. If they change the recipe, the
    memory of a step is predicted too.

    >>> summary = selfsight.doctor("photos", device="cpu", quiet=True)
    >>> summary["count"]
    24
    """
    check_setting("data", data, str | Path)
    options = change_options(options, changes)
    names = ("method", "recipe", "batch_size", "settings")
    asked = {name: getattr(options, name) for name in names}
    summary = data_summary.inspect_data(data, sample=options.sample)
    device = resolve_device(options.device)
    recipe, reasons = build_pretrain_recipe(
        data, PretrainOptions(**asked), device, profile=profile_data(summary)
    )
    memory = foresee_memory(recipe, summary.count, device) if any(asked.values()) else None
    unreadable = len(summary.unreadable)
    refusal: str | None = None
    try:
        check_image_count(
            summary.count - unreadable, unreadable, recipe.batch_size, dist.world_size()
        )
    except UserError as error:
        refusal = str(error)
    if not quiet:
        console = open_console()
        console.print(*data_summary.describe(summary), sep="\n")
        console.print(start_or_resume.recipe_table(recipe, reasons))
        if refusal is not None:
            console.print(f"pretrain cannot use these images. {refusal}", soft_wrap=True)
        if memory is not None:
            console.print(memory.describe(), soft_wrap=True)
    found = asdict(summary) | {"recipe": to_dict(recipe), "reasons": reasons, "refusal": refusal}
    return found if memory is None else found | {"memory": asdict(memory)}


def reproduce(
    what: Run | str | Path,
    options: ReproduceOptions = REPRODUCE_DEFAULTS,
    /,
    *,
    quiet: bool = False,
    **changes: Any,
) -> dict[str, Any]:
    """Train a run again and compare the logs, or an arm of the ledger and compare accuracies.

    Keywords are the options that `selfsight reproduce --help` explains: `reproduce("runs/mine",
    steps=100)`.

    >>> found = selfsight.reproduce(run, steps=2, device="cpu", quiet=True)
    >>> found["passed"]
    True
    """
    options = change_options(options, changes)
    if isinstance(what, str) and what in ARMS and not Run(Path(what)).recipe_path.exists():
        only_runs = ("steps", "tolerance", "out", "trust")
        _refuse_options(options, only_runs, f"{what} is an arm of a study")
        return reproduce_arm(what, options, quiet=quiet)
    if isinstance(what, str) and "/" not in what and not Path(what).exists():
        raise UserError(
            f'There is no run folder and no arm "{what}".{suggest(what, ARMS)} `selfsight studies '
            "NAME` lists the arms of a study."
        )
    run = open_run(what)
    _refuse_options(options, ("scale", "seed", "ledger"), f"{run.path} is a run")
    return _reproduce_run(run, options, quiet=quiet)


def _refuse_options(options: ReproduceOptions, names: Sequence[str], what: str) -> None:
    for name in names:
        if getattr(options, name) != getattr(REPRODUCE_DEFAULTS, name):
            raise UserError(f"{what}, which has no use for --{name}. Omit it.")


def _reproduce_run(run: Run, options: ReproduceOptions, *, quiet: bool) -> dict[str, Any]:
    device = resolve_device(options.device)
    recipe = load_recipe(run, trust=options.trust)
    if options.data is not None:
        recipe = replace(recipe, data=replace(recipe.data, path=str(options.data)))
    adapted, _ = adapt_to_device(recipe, device)
    console = open_console(stderr=True, quiet=quiet or not dist.prints())
    settings = {"command": "reproduce", "run": run.path.name} | vars(options)
    with dist.process_group(device.type, settings), contextlib.ExitStack() as stack:
        folder = dist.on_first(
            lambda: options.out or stack.enter_context(tempfile.TemporaryDirectory())
        )
        again = Run(Path(folder))
        stack.enter_context(run_lock.lock_run(again))
        dist.on_first(lambda: _check_empty(again))
        found = reproduction.reproduce_run(
            run,
            recipe,
            adapted,
            device,
            console,
            out=again.path,
            steps=options.steps,
            tolerance=options.tolerance,
            trust=options.trust or options.data is not None,
        )
        dist.barrier()  # before the first process removes a temporary folder
        if not quiet and dist.rank() == 0:
            open_console().print(found.sentence, soft_wrap=True)
    return asdict(found)


def _check_empty(run: Run) -> None:
    if any(path.name != LOCK for path in run.path.iterdir()):
        raise UserError(f"{run.path} is not empty. Give another --out for the repeated run.")


def _write_sbatch(data: str | Path, options: PretrainOptions, device: torch.device) -> Run:
    """Write the SLURM script of a pretraining command; return the run folder that it names."""
    if options.overwrite:
        raise UserError(
            "--sbatch writes a job that resumes its run, so --overwrite would empty it each time. "
            "Leave one of them out."
        )
    if options.recipe is not None and not isinstance(options.recipe, str):
        raise UserError("--sbatch needs the name of a recipe: a Recipe has no command line.")
    build_pretrain_recipe(data, options, device, import_start(options))
    out, path = new_run_folder.choose_folder(str(data), options), Path(str(options.sbatch))
    with explain_write_errors(path):
        path.write_text(slurm_script(str(data), options, out))
    open_console().print(
        f"Wrote {path}. Submit it with: sbatch {quote_word(str(path))}", soft_wrap=True
    )
    return Run(out)


def _resume(run: Run, recipe: Recipe, device: torch.device, clock: Stopwatch, trust: bool) -> Run:
    recipe, _ = adapt_to_device(recipe, device)
    start_or_resume.resume_run(recipe, run, device, _console(), clock, trust=trust)
    return run


def _console() -> Console:
    return open_console(stderr=True, quiet=not dist.prints())
