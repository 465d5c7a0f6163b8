"""A run from beginning to end: images, training, measurements, verdict, report."""

import platform
from dataclasses import replace
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from selfsight import dist, report
from selfsight.console import format_value
from selfsight.data import Images, Source, open_images, open_source, planned
from selfsight.data.loader import check_batches
from selfsight.errors import UserError
from selfsight.evals.baselines import baselines
from selfsight.nn.memory_bank import refuse_too_large
from selfsight.recipe import Data, Recipe, method_name, to_dict
from selfsight.run_folder import Run, read_json, write_json
from selfsight.runs import results
from selfsight.runs.verdict import Verdict, judge
from selfsight.train.batch_size_finder import fitting
from selfsight.train.loop import State
from selfsight.train.pretrain import build, pretrain
from selfsight.version import __version__

Reasons = dict[str, str]


def begin(
    recipe: Recipe,
    reasons: Reasons,
    run: Run,
    device: torch.device,
    console: Console,
    *,
    automatic: bool,
) -> None:
    """A new run; an automatic recipe that does not fit in memory is retried with one that does."""
    dist.start(device.type)
    try:
        source = source_of(recipe)
        recipe, settled = with_plan(recipe, source, device)
        reasons = reasons | settled
        images = images_of(recipe, device, console, source)
        try:
            _run(recipe, reasons, run, images, device, console)
        except torch.OutOfMemoryError:
            smaller = fitting(recipe, device)
            sentence = (
                f"A batch of {recipe.batch_size} does not fit in the memory of {_name(device)}; "
                f"{smaller.batch_size} does."
            )
            if not automatic:
                raise UserError(f"{sentence} Use --batch-size {smaller.batch_size}.") from None
            console.print(f"{sentence} Starting again with it.", highlight=False)
            reasons = reasons | {"batch_size": sentence}
            _run(smaller, reasons, run, images, device, console)
    finally:
        dist.stop()


def go_on(recipe: Recipe, run: Run, device: torch.device, console: Console) -> None:
    """The rest of a run that stopped; a finished one is left as it is."""
    records = run.records()
    if run.result("verdict") and records and records[-1]["epoch"] >= recipe.epochs:
        console.print(f"{run.path} is finished: {recipe.epochs} epochs. Report: {run.report}")
        return
    dist.start(device.type)
    try:
        images = images_of(recipe, device, console)
        _refuse_others(run, images)
        _finish(recipe, run, images, device, console)
    finally:
        dist.stop()


def _refuse_others(run: Run, images: Images) -> None:
    """A run goes on with the images it was begun with: its order is that of their number."""
    begun = (read_json(run.recipe_path) or {}).get("images", len(images))
    if begun != len(images):
        raise UserError(
            f"{run.path} was begun with {begun:,} images, and there are {len(images):,} now: "
            "epochs and batches would not be those of the rest. Bring back what has changed, or "
            "begin a new run with --out."
        )


def source_of(recipe: Recipe) -> Source:
    """The encoded images of a recipe."""
    data = recipe.data
    source = open_source(data.path, labels=data.labels, classes=data.classes)
    if recipe.method.needs_labels and source.labels is None:
        raise UserError(
            f"{method_name(recipe.method)} learns from labels, and {data.path} has none. Add "
            "--labels if its sub-folders are classes, or choose a method of `selfsight methods` "
            "that learns without."
        )
    if recipe.method.row_each:  # before hours of decoding
        refuse_too_large(len(source), recipe.method.dim)  # type: ignore[attr-defined]
    return source


def with_plan(recipe: Recipe, source: Source, device: torch.device) -> tuple[Recipe, Reasons]:
    """The recipe with how its images are kept and decoded settled, and why it is so."""
    data = recipe.data
    made = planned(source, **_how(data), device=device)
    return replace(recipe, data=replace(data, keep=made.keep, decoder=made.decoder)), made.reasons


def _how(data: Data) -> dict[str, Any]:
    return {name: getattr(data, name) for name in ("keep", "decoder", "store_size", "channels")}


def images_of(
    recipe: Recipe,
    device: torch.device,
    console: Console | None = None,
    source: Source | None = None,
) -> Images:
    """The images of a recipe; kept ones are on the device if they fit."""
    source = source_of(recipe) if source is None else source
    if device.type != "cuda" and recipe.data.decoder == "nvjpeg":  # a run from another machine
        recipe = replace(recipe, data=replace(recipe.data, decoder="cpu"))
    recipe, _ = with_plan(recipe, source, device)
    images = open_images(source, **_how(recipe.data), device=device)
    if console and images.notes:
        console.print("\n".join(images.notes), highlight=False, markup=False)
    if console:
        _tell_skipped(images, console)
    return images


def _tell_skipped(images: Images, console: Console) -> None:
    if not images.skipped:
        return
    shown = ", ".join(f"{name} ({why})" for name, why in images.skipped[:5])
    more = ", ..." if len(images.skipped) > 5 else ""
    console.print(
        f"Left out {len(images.skipped)} unreadable images: {shown}{more}",
        highlight=False,
        markup=False,
    )


def choices(recipe: Recipe, reasons: Reasons) -> Table:
    """What was chosen, each with its reason."""
    table = Table(title="recipe", title_justify="left", header_style="bold")
    for name in ("setting", "value", "why"):
        table.add_column(name)
    view, stem = recipe.views[0], recipe.backbone
    values = {
        "method": method_name(recipe.method),
        "backbone": stem.name,
        "views": f"{len(recipe.views)} of {view.size} px",
        "data.store_size": recipe.data.store_size,
        "data.keep": recipe.data.keep,
        "data.decoder": recipe.data.decoder,
        "batch_size": recipe.batch_size,
        "epochs": recipe.epochs,
        "optim": f"{recipe.optim.name}, rate {recipe.optim.lr:g}",
        "precision": recipe.precision,
        "compile": recipe.compile,
        "seed": recipe.seed,
    }
    for name in reasons:
        if name.startswith("method."):
            values[name] = getattr(recipe.method, name.removeprefix("method."))
    for name, value in values.items():
        table.add_row(name, format_value(value), reasons.get(name, ""))
    return table


def conclude(run: Run, recipe: Recipe) -> Verdict:
    """Judge the run by all that its folder holds, and write the report."""
    verdict = judge(run.records(), run.results_all(), to_dict(recipe))
    run.write_result("verdict", verdict.to_dict())
    report.write(run)
    return verdict


def _run(
    recipe: Recipe,
    reasons: Reasons,
    run: Run,
    images: Images,
    device: torch.device,
    console: Console,
) -> None:
    check_batches(images, recipe.batch_size, dist.world_size())
    console.print(choices(recipe, reasons))
    if dist.rank() == 0:
        about = {
            "images": len(images),
            "skipped": len(images.skipped),
            "device": _name(device),
            "processes": dist.world_size(),
            "versions": {
                "selfsight": __version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
            "reasons": reasons,
        }
        write_json(run.recipe_path, to_dict(recipe) | about)
    _finish(recipe, run, images, device, console)


def _finish(
    recipe: Recipe, run: Run, images: Images, device: torch.device, console: Console
) -> None:
    if dist.rank() == 0:
        results.draw_views(run, recipe, images)
    knn = results.online_knn(recipe, images)
    state = pretrain(recipe, run, images, device, knn=knn, console=console)
    if not images.kept:  # only now is it known
        _tell_skipped(images, console)
    if dist.rank() == 0:
        _measured(recipe, run, images, device, state)
        verdict = conclude(run, recipe)
        console.print(
            f"\n[bold]{verdict.sentence}[/]\nReport: {run.report}\n"
            f"Measure it:  selfsight evaluate {run.path} --labeled FOLDER\n"
            f'Use it:      selfsight.load("{run.path}")',
            highlight=False,
        )
    dist.barrier()


def _measured(recipe: Recipe, run: Run, images: Images, device: torch.device, state: State) -> None:
    """What the verdict and the report need, beside the untrained network."""
    trained = state.method.student.backbone
    untrained = build(recipe, device).student.backbone
    results.without_labels(run, recipe, trained, untrained, images)
    knn = results.online_knn(recipe, images)
    if knn is not None:
        found = baselines(knn, untrained)
        seen = {"images": "some of those that were learned from", "seed": recipe.seed}
        settings = knn.settings() | seen
        other = settings | {"features": results.BASELINES}
        run.write_result("baselines", {**found, "settings": other})
        run.write_result(
            "knn",
            {
                **knn(trained),
                "untrained_accuracy": found["untrained"],
                "settings": settings | {"features": "backbone"},
            },
        )
    results.draw_map(run, recipe, trained, images)


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
