"""`selfsight adapt`: try the arms within a time limit, measure them, keep the best."""

import gc
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from selfsight.adaptation.compare_arms import (
    ARMS,
    TITLES,
    ArmName,
    ArmResult,
    Choice,
    choose,
    compare,
    format_number,
)
from selfsight.adaptation.measure_encoders import (
    LABEL_FREE_IMAGES,
    describe_images,
    measure_label_free,
    measure_labeled,
)
from selfsight.adaptation.time_budget import RESERVE, fit_epochs, measure_speed
from selfsight.check_settings import check_setting
from selfsight.data import ImageStore, Source
from selfsight.data.loader import check_batch_size
from selfsight.device import resolve_device
from selfsight.encoders.init_encoder import StartEncoder, import_start, write_start
from selfsight.encoders.load_encoder import load_recipe
from selfsight.errors import DivergedError, StoppedError, UserError
from selfsight.evals.eval_images import EvalImages
from selfsight.evals.labeled_data import LabeledData
from selfsight.evals.prediction_scores import Scores
from selfsight.exporters.export_encoder import export_encoder
from selfsight.options.encoder_options import ADAPT_DEFAULTS, AdaptOptions, ExportOptions
from selfsight.options.eval_options import EvalOptions
from selfsight.options.parse_flags import change_options
from selfsight.options.pretrain_options import PretrainOptions
from selfsight.recipe import Recipe, Start, eval_transform, to_dict
from selfsight.recipe_from_options import build_pretrain_recipe
from selfsight.run_files.json_files import read_object, to_json, write_json
from selfsight.run_files.run_folder import LOCK, Run
from selfsight.runs import new_run_folder, run_lock
from selfsight.runs.environment import describe_environment
from selfsight.runs.labeled_sources import cut_labeled, open_labeled
from selfsight.runs.open_run_images import (
    fingerprint_everywhere,
    open_recipe_images,
    open_recipe_source,
    resolve_storage,
)
from selfsight.terminal.console import build_table, open_console
from selfsight.train.init_weights import build_method
from selfsight.train.memory_forecast import check_memory
from selfsight.train.pretrain import pretrain
from selfsight.train.training_progress import format_duration

RESULT, SETTINGS, ENCODER = "adapt.json", "settings.json", "encoder"  # in the folder
# Options that decide what the arms are; others, such as the minutes, may change from call to call.
DECISIVE = ("init", "part", "stem", "labeled", "label_column", "method", "batch_size", "seed")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What the arms share: images, recipe, initial encoder, and how encoders are measured."""

    data: str
    options: AdaptOptions
    pretrain_options: PretrainOptions
    start: StartEncoder
    recipe: Recipe
    reasons: dict[str, str]
    source: Source
    images: ImageStore
    measure: Callable[[nn.Module], dict[str, Scores]]
    measured_on: str
    folder: Path
    device: torch.device
    console: Console
    end: float  # of the monotonic clock


def adapt(
    data: str | Path,
    options: AdaptOptions = ADAPT_DEFAULTS,
    /,
    *,
    quiet: bool = False,
    **changes: Any,
) -> dict[str, Any]:
    """Decide whether to train at all: frozen encoder, continued pretraining, or from scratch.

    Keywords are the options that `selfsight adapt --help` explains: `adapt("photos/",
    init="runs/mine", minutes=30)`. The result has the sentence and the numbers of every arm, and is
    written to adapt.json.

    >>> answer = selfsight.adapt("photos", init=run, minutes=30)  # doctest: +SKIP
    """
    began = time.monotonic()
    check_setting("data", data, str | Path)
    options = change_options(options, changes)
    if options.init is None:
        raise UserError(
            "Name the encoder to start from: --init timm:NAME, a run folder, or a file of weights."
        )
    if int(os.environ.get("WORLD_SIZE") or 1) > 1:
        raise UserError("adapt runs in one process. Start it without torchrun.")
    folder = _choose_folder(str(data), options)
    console, device = open_console(stderr=True), resolve_device(options.device)
    with run_lock.lock_run(Run(folder)):
        _check_settings(folder, str(data), options)
        finished = read_object(folder / RESULT)
        if finished is None:
            trial = prepare_trial(str(data), options, folder, device, console, began)
            arms = try_arms(trial)
            choice = choose(arms, images=trial.measured_on)
            finished = finish_trial(trial, arms, choice, time.monotonic() - began)
    if not quiet:
        _print(finished)
    return finished


def _choose_folder(data: str, options: AdaptOptions) -> Path:
    if options.out is not None and not str(options.out).strip():
        raise UserError("--out is empty; a variable of the shell may be unset. Give a folder.")
    name = new_run_folder.file_name(f"{Path(data.split(':')[-1]).stem or 'run'}-adapt")
    return Path(options.out or Path("runs") / name)


def _check_settings(folder: Path, data: str, options: AdaptOptions) -> None:
    """Save the settings of the arms; raise a UserError if the folder has other arms or files.

    The same command continues where an earlier one stopped.
    """
    asked = to_json({"data": data, "settings": list(options.settings)})
    asked |= to_json({name: _plain(getattr(options, name)) for name in DECISIVE})
    saved = read_object(folder / SETTINGS)
    if options.overwrite and saved is not None:
        for name in (RESULT, SETTINGS, ENCODER, *ARMS):
            path = folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        saved = None
    if saved is None:
        others = [path.name for path in folder.iterdir() if path.name != LOCK]
        if others:
            raise UserError(f"{folder} holds other files. Give another --out.")
        return write_json(folder / SETTINGS, asked)
    differs = [name for name, value in asked.items() if saved.get(name) != value]
    if differs:
        raise UserError(
            f"{folder} was started with another {differs[0]}: {saved.get(differs[0])}. Repeat that "
            "command to continue, add --overwrite, or give another --out."
        )
    return None


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def prepare_trial(
    data: str,
    options: AdaptOptions,
    folder: Path,
    device: torch.device,
    console: Console,
    began: float,
) -> Trial:
    """Load the encoder, the images and the labeled images."""
    names = ("init", "part", "stem", "trust", "method", "epochs", "batch_size", "seed", "settings")
    pretrain_options = PretrainOptions(**{name: getattr(options, name) for name in names})
    start = import_start(pretrain_options)
    assert start is not None
    console.print(start.summary, soft_wrap=True)
    recipe, reasons = build_pretrain_recipe(data, pretrain_options, device, start)
    source = open_recipe_source(recipe)
    check_memory(recipe, len(source), device)
    recipe, storage_reasons = resolve_storage(recipe, source, device)
    labeled = None if options.labeled is None else _open_labeled(options, recipe, device)
    images = open_recipe_images(recipe, device, console, source)
    check_batch_size(images, recipe.batch_size, 1)
    if labeled is None:
        measure: Callable[[nn.Module], dict[str, Scores]] = partial(
            measure_label_free, images=images, views=recipe.views, seed=options.seed
        )
    else:
        measure = partial(measure_labeled, data=labeled, seed=options.seed)
    return Trial(
        data=data,
        options=options,
        pretrain_options=pretrain_options,
        start=start,
        recipe=recipe,
        reasons=reasons | storage_reasons,
        source=source,
        images=images,
        measure=measure,
        measured_on=f"two views of {min(LABEL_FREE_IMAGES, len(images)):,} images"
        if labeled is None
        else describe_images(labeled),
        folder=folder,
        device=device,
        console=console,
        end=began + 60 * options.minutes,
    )


def _open_labeled(options: AdaptOptions, recipe: Recipe, device: torch.device) -> LabeledData:
    given = EvalOptions(labeled=options.labeled, label_column=options.label_column)
    sources = cut_labeled(open_labeled(given, ()), recipe)
    transform = eval_transform(recipe)
    test = None if sources.test is None else EvalImages(sources.test, transform, device)
    train = EvalImages(sources.train, transform, device)
    return LabeledData(train=train, test=test, transform=transform)


def try_arms(trial: Trial) -> list[ArmResult]:
    """Measure the frozen encoder, then train and measure the other arms while time is left."""
    console, device = trial.console, trial.device
    console.print("Frozen: measuring the unchanged encoder.")
    start = time.monotonic()
    frozen = build_method(trial.recipe, device, start=trial.start.weights).student.backbone
    arms = [ArmResult(name="frozen", scores=trial.measure(frozen))]
    del frozen
    measuring = time.monotonic() - start
    for name in ARMS[1:]:
        rest = ARMS[ARMS.index(name) :]  # share what is left
        left = trial.end - time.monotonic() - RESERVE * measuring * len(rest)
        arms.append(_try_arm(trial, name, left / len(rest)))
    return arms


def _try_arm(trial: Trial, name: ArmName, seconds: float) -> ArmResult:
    """Train an arm for these seconds, from its last checkpoint if it has one, and measure it."""
    console, device = trial.console, trial.device
    run = Run(trial.folder / name)
    weights = trial.start.weights if name == "continued" else None
    facts: dict[str, Any] = {"folder": str(run.path)}
    if run.recipe_path.exists():
        recipe = load_recipe(run, trust=trial.options.trust)
        console.print(f"{name.capitalize()}: continuing {run.path}.")
    else:
        recipe = _arm_recipe(trial, name, None)
        speed = measure_speed(recipe, trial.images, device, weights)
        facts["images_per_second"] = round(speed, 1)
        count = len(trial.images) // recipe.batch_size * recipe.batch_size
        epochs = fit_epochs(seconds, speed, count, most=recipe.epochs)
        if not epochs:
            needed = format_duration(count / speed)
            note = f"not tried: one epoch takes {needed}, more than the time that is left"
            console.print(f"{name.capitalize()}: {note}.")
            return ArmResult(name=name, note=note, facts=facts)
        recipe = _arm_recipe(trial, name, epochs)
        console.print(
            f"{name.capitalize()}: {epochs} epochs at {speed:,.0f} images/s, about "
            f"{format_duration(epochs * count / speed)}."
        )
        _write_run(trial, run, recipe, name)
    began = time.monotonic()
    try:
        state = pretrain(
            recipe,
            run,
            trial.images,
            device,
            knn=None,
            console=console,
            deadline=began + max(seconds, 0.0),
            list_groups=False,
        )
    except DivergedError as error:
        return ArmResult(name=name, note=f"diverged: {error}", facts=facts)
    except StoppedError as error:
        sentence = "Stopped while adapting. Repeat the command to continue."
        raise StoppedError(sentence, error.signal_number) from None
    steps = len(trial.images) // recipe.batch_size
    facts |= {"epochs": state.step / steps, "seconds": round(time.monotonic() - began, 1)}
    note = "" if state.step == recipe.epochs * steps else f"stopped in time, of {recipe.epochs}"
    scores = trial.measure(state.method.student.backbone)
    del state
    gc.collect()  # a recorded step refers to itself, and keeps the memory of its graph
    return ArmResult(name=name, scores=scores, note=note, facts=facts)


def _arm_recipe(trial: Trial, name: ArmName, epochs: int | None) -> Recipe:
    """Recipe of a trained arm; both arms share the network, the views and the method."""
    options = replace(trial.pretrain_options, epochs=epochs or trial.options.epochs)
    recipe, _ = build_pretrain_recipe(trial.data, options, trial.device, trial.start)
    changes: dict[str, Any] = {"data": trial.recipe.data, "backbone": recipe.backbone.resolved()}
    changes |= {"start": Start()} if name == "scratch" else {}
    return replace(recipe, **changes)


def _write_run(trial: Trial, run: Run, recipe: Recipe, name: ArmName) -> None:
    """Write a run folder that every other command can use."""
    about = {
        "data_fingerprint": fingerprint_everywhere(recipe, trial.source),
        "images": len(trial.images),
        "skipped": len(trial.images.skipped),
        **describe_environment(trial.device),
        "reasons": trial.reasons,
    }
    run.path.mkdir(parents=True, exist_ok=True)
    if name == "continued":
        write_start(run, trial.start)
    write_json(run.recipe_path, to_dict(recipe) | about)


def finish_trial(
    trial: Trial, arms: Sequence[ArmResult], choice: Choice, seconds: float
) -> dict[str, Any]:
    """Delete arms worse than the initial encoder, export the chosen one, write the result."""
    for name in choice.worse:
        run = Run(trial.folder / name)
        shutil.rmtree(run.checkpoints, ignore_errors=True)
        trial.console.print(
            f"Deleted the checkpoints of {run.path}: measurably worse than the initial encoder."
        )
    options = trial.options
    target = ExportOptions(to="safetensors", overwrite=True, trust=options.trust)
    chosen = str(trial.folder / choice.name)
    if choice.name == "frozen":
        chosen, target = str(options.init), replace(target, part=options.part, stem=options.stem)
    written = export_encoder(chosen, trial.folder / ENCODER, target)
    result = to_json(
        {
            "sentence": choice.sentence,
            "choice": choice.name,
            "encoder": written["folder"],
            "lines": written["lines"],
            "data": trial.data,
            "init": trial.start.name,
            "license": trial.start.license,
            "measured_on": trial.measured_on,
            "minutes": options.minutes,
            "seconds": round(seconds, 1),
            "worse_than_start": list(choice.worse),
            "arms": [_describe_arm(arm, arms[0]) for arm in arms],
        }
    )
    write_json(trial.folder / RESULT, result)
    return result


def _describe_arm(arm: ArmResult, frozen: ArmResult) -> dict[str, Any]:
    """Numbers of an arm with their intervals, and differences from the frozen encoder."""
    measures = {}
    for measure in arm.scores:
        found = arm.interval(measure)
        assert found is not None
        measures[measure] = found._asdict()
        if arm is not frozen:
            measures[measure] |= {"difference": compare(arm, frozen, measure)._asdict()}
    return {"arm": arm.name, "note": arm.note, **arm.facts, "measures": measures}


def _print(result: Mapping[str, Any]) -> None:
    records = []
    for arm in result["arms"]:
        record = {"arm": arm["arm"], "epochs": arm.get("epochs", "")}
        for measure, found in arm["measures"].items():
            low, high = (format_number(measure, found[end]) for end in ("low", "high"))
            value, low = format_number(measure, found["value"]), low.removesuffix(" %")
            record[TITLES[measure]] = f"{value} ({low}-{high.removesuffix(' %')})"
        records.append(record | {"note": arm["note"]})
    console = open_console()
    console.print(build_table(records))
    console.print("", result["sentence"], sep="\n", style="bold", soft_wrap=True)
    how = "its README.md has the lines that load it"
    console.print(f"Encoder: {result['encoder']} ({how})", soft_wrap=True)
