"""Start, resume and finish a run: open images, train, evaluate, write verdict and report."""

from dataclasses import asdict, replace
from typing import Any

import torch
from rich.console import Console

from selfsight import dist, report_page
from selfsight.command_hint import write_command
from selfsight.data import ImageStore, StreamedImages
from selfsight.data.loader import check_batch_size
from selfsight.encoders.init_encoder import StartEncoder, write_start
from selfsight.encoders.untrained_network import UNTRAINED, build_untrained_student
from selfsight.errors import StoppedError, UserError, count_noun
from selfsight.evals.baselines import baselines
from selfsight.evals.eval_images import describe_transform
from selfsight.evals.extract_features import Features
from selfsight.evals.prediction_scores import Scores
from selfsight.outside_code import list_outside_code, locate_code
from selfsight.recipe import Recipe, Start, eval_transform, list_changed, method_name, to_dict
from selfsight.run_files.json_files import write_json
from selfsight.run_files.run_folder import Run
from selfsight.runs.build_result import collect_arrays, collect_scores
from selfsight.runs.environment import compare_environments, describe_environment, device_name
from selfsight.runs.image_sheets import write_map_and_neighbors, write_views
from selfsight.runs.new_run_folder import restore_old_run, set_old_run_aside
from selfsight.runs.open_run_images import (
    Reasons,
    check_local,
    describe_other_images,
    fingerprint_everywhere,
    open_new_source,
    open_recipe_images,
    open_recipe_source,
    print_skipped,
    resolve_storage,
)
from selfsight.runs.result_fingerprint import fingerprint_test_images
from selfsight.runs.score_encoders import BASELINE_FEATURES, score_label_free
from selfsight.runs.verdict import Verdict, judge
from selfsight.stopwatch import Stopwatch, describe_seconds
from selfsight.terminal.console import RecordTable, build_table, open_console
from selfsight.train import checkpoint
from selfsight.train.disk_forecast import check_disk
from selfsight.train.memory_forecast import check_memory
from selfsight.train.online_eval import build_online_knn
from selfsight.train.prepare_kernels import prepare_kernels
from selfsight.train.pretrain import count_classes, describe_data, pretrain
from selfsight.train.training_state import State
from selfsight.train.trial_steps import halve_batch_until_it_fits

MAX_LEFT_OUT = 1000  # names of unreadable images in recipe.json


def start_run(
    recipe: Recipe,
    reasons: Reasons,
    run: Run,
    device: torch.device,
    console: Console,
    clock: Stopwatch,
    *,
    automatic: bool,
    start: StartEncoder | None = None,
) -> None:
    """Start a run; an automatic batch size that does not fit in memory is lowered.

    `start` is the encoder that the recipe starts from; its weights are written to the run folder.

    After all checks have passed, a run that is overwritten is set aside, and restored unless the
    new one saves a checkpoint.
    """
    with prepare_kernels(recipe, device, clock):
        recipe, source = open_new_source(recipe)
        about: dict[str, Any] = {"data_fingerprint": fingerprint_everywhere(recipe, source)}
        about["outside_code"] = locate_code(list_outside_code(to_dict(recipe)))
        check_memory(recipe, len(source), device)  # before hours of decoding
        recipe, storage_reasons = resolve_storage(recipe, source, device)
        # The file must say what is built.
        recipe = replace(recipe, backbone=recipe.backbone.resolved())
        reasons = reasons | storage_reasons
        console.print(dist.on_first(lambda: check_disk(recipe, source, run)), soft_wrap=True)
        images = open_recipe_images(recipe, device, console, source)
    check_batch_size(images, recipe.batch_size, dist.world_size())
    dist.on_first(lambda: set_old_run_aside(run))
    try:
        if start is not None:
            console.print(start.summary, soft_wrap=True)
            dist.on_first(lambda: write_start(run, start))
        if _write_recipe_and_train(recipe, reasons, about, run, images, device, console, clock):
            return
        # Outside of the handler of the error, which would keep the tensors of the failed run.
        smaller = halve_batch_until_it_fits(recipe, device, describe_data(images))
        sentence = (
            f"A batch of {recipe.batch_size} does not fit in the memory of "
            f"{device_name(device)}; {smaller.batch_size} does."
        )
        if not automatic:
            raise UserError(f"{sentence} Use --batch-size {smaller.batch_size} --overwrite.")
        console.print(f"{sentence} Starting again with it.")
        reasons = reasons | {"batch_size": sentence}
        if not _write_recipe_and_train(
            smaller, reasons, about, run, images, device, console, clock
        ):
            raise UserError(f"{sentence} Yet training ran out of memory. Use a smaller one.")
    except BaseException:
        if dist.rank() == 0 and restore_old_run(run):
            text = "held before is back: the new one had no checkpoint yet."
            console.print(f"The run that {run.path} {text}")
        raise


def resume_run(
    recipe: Recipe,
    run: Run,
    device: torch.device,
    console: Console,
    clock: Stopwatch,
    *,
    trust: bool = False,
) -> None:
    """Resume a run that stopped. A finished run does not change.

    With `trust` its images may be on a network, which only its recipe.json names.
    """
    records = run.records()
    if run.result("verdict") and records and records[-1]["epoch"] >= recipe.epochs:
        console.print(
            f"{run.path} is finished: {count_noun(recipe.epochs, 'epoch')}. Report: {run.report}"
        )
        return
    check_local(run, recipe, trust=trust)
    with prepare_kernels(recipe, device, clock):
        source = open_recipe_source(recipe)
        difference = describe_other_images(run, fingerprint_everywhere(recipe, source))
        if difference is not None:
            raise UserError(
                f"{run.recipe_path} records other images than {recipe.data.path} holds: "
                f"{difference}. Restore the data, or start a new run with another --out."
            )
        check_memory(recipe, len(source), device)
        dist.on_first(lambda: check_disk(recipe, source, run))
        images = open_recipe_images(recipe, device, console, source)
    dist.on_first(lambda: _note_resume(run, device))
    _train_to_verdict(recipe, run, images, device, console, clock)


def _note_resume(run: Run, device: torch.device) -> None:
    """Record an event if a run continues in another environment than it was started in."""
    differs = compare_environments(run.saved_recipe(), describe_environment(device))
    if differs:
        step = checkpoint.read_step(run.checkpoints / checkpoint.LAST) or 0
        run.add_event({"event": "resumed", "run": str(run.path), "step": step, "differs": differs})


def recipe_table(recipe: Recipe, reasons: Reasons) -> RecordTable:
    """Build a table of the main settings, each with its reason."""
    view = recipe.views[0]
    values = {
        "method": method_name(recipe.method),
        "backbone": recipe.backbone.name,
        **_start_settings(recipe.start),
        "views": f"{len(recipe.views)} of {view.size} px",
        **({} if recipe.data.tile is None else {"data.tile": recipe.data.tile}),
        "data.store_size": recipe.data.store_size,
        "data.storage": recipe.data.storage,
        "data.decoder": recipe.data.decoder,
        "batch_size": recipe.batch_size,
        "epochs": recipe.epochs,
        "optim": f"{recipe.optim.name}, learning rate {recipe.optim.lr:g}",
        "precision": recipe.precision,
        "compile": recipe.compile,
        "seed": recipe.seed,
    }
    for name in reasons:
        if name.startswith("method."):
            values[name] = getattr(recipe.method, name.removeprefix("method."))
    records = [
        {"setting": name, "value": value, "why": reasons.get(name, "")}
        for name, value in values.items()
    ]
    return build_table(records, title="recipe")


def _start_settings(start: Start) -> dict[str, Any]:
    if not start.name:
        return {}
    return {
        "init": start.name,
        **{f"start.{k}": getattr(start, k) for k in ("lr_factor", "freeze")},
    }


def write_verdict(run: Run, recipe: Recipe) -> Verdict:
    """Judge the run from its folder; write the verdict and the report."""
    classes = {k: v for k, v in run.saved_recipe().items() if k == "num_classes"}
    verdict = judge(run.records(), run.all_results(), to_dict(recipe) | classes, run.events())
    run.write_result("verdict", asdict(verdict))
    report_page.write(run)
    return verdict


def _write_recipe_and_train(
    recipe: Recipe,
    reasons: Reasons,
    about: dict[str, Any],
    run: Run,
    images: ImageStore,
    device: torch.device,
    console: Console,
    clock: Stopwatch,
) -> bool:
    """Train a new run; return False if the memory of the device is not enough."""
    console.print(recipe_table(recipe, reasons))
    classes = count_classes(recipe, images)
    if dist.rank() == 0:
        about = about | {
            "images": len(images),
            "skipped": len(images.skipped),
            "left_out": dict(images.skipped[:MAX_LEFT_OUT]),
            "changed": list_changed(recipe),
            **({} if classes is None else {"num_classes": classes}),
            **describe_environment(device),
            "reasons": reasons,
        }
        write_json(run.recipe_path, to_dict(recipe) | about)
    try:
        _train_to_verdict(recipe, run, images, device, console, clock)
    except torch.OutOfMemoryError:
        world_size = dist.world_size()
        if world_size > 1:  # the others wait in the middle of a step
            smaller = recipe.batch_size // 2 // world_size * world_size
            raise UserError(
                f"The {recipe.batch_size // world_size} images that each of {world_size} processes "
                f"has of a batch do not fit in the memory of {device_name(device)}. Use a smaller "
                f"--batch-size{f' ({smaller})' if smaller else ''}, or --chunk."
            ) from None
        if (run.checkpoints / checkpoint.LAST).exists():  # another batch could not resume it
            raise
        return False
    return True


def _train_to_verdict(
    recipe: Recipe,
    run: Run,
    images: ImageStore,
    device: torch.device,
    console: Console,
    clock: Stopwatch,
) -> None:
    if dist.rank() == 0:
        write_views(run, images, recipe)
    knn = build_online_knn(recipe, images)
    clock.lap("data")
    try:
        state = pretrain(
            recipe, run, images, device, knn=knn, console=console, clock=clock, compile_ahead=True
        )
    except StoppedError:
        clock.lap("steps")
        if dist.rank() == 0:
            run.log_seconds(clock.record())
        raise
    if isinstance(images, StreamedImages):  # a stream finds unreadable images while it trains
        print_skipped(images, console)
    if dist.rank() == 0:
        _evaluate_trained(recipe, run, images, device, state)
        clock.lap("evaluation")
        verdict = write_verdict(run, recipe)
        clock.lap("report")
        run.log_seconds(clock.record())
        open_console().print("", verdict.sentence, sep="\n", style="bold")
        trust = ", trust=True" if list_outside_code(to_dict(recipe)) else ""
        console.print(
            describe_seconds(clock.record()),
            f"Report: {run.report}",
            f"Evaluate it: {write_command('evaluate', run, '--labeled', 'FOLDER')}",
            f"Use it:      selfsight.load({str(run.path)!r}{trust})",
            sep="\n",
            soft_wrap=True,
        )
    dist.barrier()


def _evaluate_trained(
    recipe: Recipe, run: Run, images: ImageStore, device: torch.device, state: State
) -> None:
    """Measure what the verdict and the report need, trained and untrained."""
    trained = state.method.student.backbone
    untrained = build_untrained_student(recipe, images, device, steps=state.step, run=run).backbone
    score_label_free(run, recipe, trained, untrained, images)
    knn = build_online_knn(recipe, images)
    encoded: dict[str, list[Features]] = {}
    scores: dict[str, Scores] = {}
    if knn is not None:
        for name, network in (("trained", trained), (UNTRAINED, untrained)):
            train, _ = knn.data.features(network, on_host=knn.data.is_large)
            encoded[name], scores[name] = [train], knn.score(train, None)
        settings = knn.settings() | {
            "images": "training images",
            "seed": recipe.seed,
            "stored_size": recipe.data.store_size,
            "transform": describe_transform(images, knn.data.transform),
        }
        about_baselines = {"settings": settings | {"features": BASELINE_FEATURES}}
        numbers = baselines(knn, untrained, scores[UNTRAINED])
        run.write_result("online_baselines", numbers | about_baselines)
        result = collect_scores(scores, class_names=knn.data.class_names)
        run.write_arrays("online_knn", collect_arrays(scores, fingerprint_test_images(knn.data)))
        run.write_result("online_knn", result | {"settings": settings | {"features": "backbone"}})
    write_map_and_neighbors(
        run, images, trained, untrained, eval_transform(recipe), recipe.seed, encoded
    )
