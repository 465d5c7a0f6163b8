"""The command `selfsight bench`: choose recipe and images, measure, print."""

import math
import os
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from selfsight.bench.all_methods import measure_all
from selfsight.bench.communication import measure_exchanges
from selfsight.bench.generated_images import write_photo_like_images
from selfsight.bench.lightly_comparison import import_lightly, measure_lightly
from selfsight.bench.step_breakdown import describe, measure_breakdown
from selfsight.bench.step_growth import measure_scaling
from selfsight.catalog import build_recipe
from selfsight.data.cgroup_limits import available_cpus
from selfsight.device import adapt_to_device, resolve_device
from selfsight.errors import UserError, count_noun
from selfsight.options.bench_options import BENCH_DEFAULTS, BenchOptions
from selfsight.options.parse_flags import change_options
from selfsight.recipe import Recipe, override
from selfsight.runs.open_run_images import open_recipe_source
from selfsight.terminal.console import open_console

DEFAULT_ON_CPU, DEFAULT_ON_GPU = "simclr.shapes", "moco.cifar10_r18_200ep"
NUM_GENERATED = 4096  # images, if no data are given and the recipe's views are large
DEFAULT_ROWS = "bench-rows"
SMALL_VIEW = 64  # pixels; for views up to this size the built-in set is used


def run(
    recipe: str | None = None,
    options: BenchOptions = BENCH_DEFAULTS,
    /,
    *,
    quiet: bool = False,
    **changes: Any,
) -> dict[str, Any]:
    """Measure the speed of a recipe and print it. Keywords are the fields of BenchOptions."""
    options = change_options(options, changes)
    _check_options(options, recipe)
    seconds, against = options.seconds, options.against
    console, device = open_console(quiet=quiet), resolve_device(options.device)
    if options.cores is not None:
        _use_cores(options.cores)
    if options.all:
        return _run_all(options, device, console)
    name = recipe or (DEFAULT_ON_GPU if device.type == "cuda" else DEFAULT_ON_CPU)
    chosen = build_recipe(name)
    if device.type == "cuda":
        chosen = replace(chosen, compile=True)
    given = {"batch_size": options.batch_size}
    chosen = override(chosen, given, options.settings, command="bench RECIPE")
    if against:
        import_lightly(chosen)
    chosen, _ = adapt_to_device(chosen, device)
    if options.growth:
        console.print(f"{name}, random images, {device}")
        points = measure_scaling(chosen, device, seconds=seconds, console=console)
        exchanges = measure_exchanges(chosen, console)
        return {
            "recipe": name,
            "growth": [asdict(point) for point in points],
            "exchanges": [asdict(counted) for counted in exchanges],
        }
    with tempfile.TemporaryDirectory(prefix="selfsight-bench-") as folder:
        path = (
            str(options.data) if options.data else _generate_images(chosen, Path(folder), console)
        )
        labels = chosen.data.labels or chosen.method.needs_labels
        chosen = replace(chosen, data=replace(chosen.data, path=path, labels=labels))
        console.print(f"{name}, batch {chosen.batch_size}, {path}, {device}")
        result = measure_breakdown(name, chosen, device, seconds=seconds, console=console)
        console.print(*describe(result), sep="\n")
        measured = asdict(result)
        if against:
            measured[against] = _compare(chosen, device, options, result.images_per_second, console)
    return measured


def _run_all(options: BenchOptions, device: torch.device, console: Console) -> dict[str, Any]:
    """Measure every method and print the path of the table."""
    folder = Path(options.out or DEFAULT_ROWS)

    def data_for(recipe: Recipe) -> str:
        return str(options.data) if options.data else _generate_images(recipe, folder, console)

    rows = measure_all(
        folder,
        device,
        data_for=data_for,
        only=options.only,
        batch_size=options.batch_size,
        flags=options.settings,
        seconds=options.seconds,
        minutes=options.minutes,
        console=console,
    )
    console.print(
        f"{count_noun(len(rows), 'row')} in {folder / 'table.md'}", highlight=False, soft_wrap=True
    )
    return {"rows": rows}


def _check_options(options: BenchOptions, recipe: str | None) -> None:
    given = {"--only": options.only, "--minutes": options.minutes, "--out": options.out}
    if not options.all and (flags := [flag for flag, value in given.items() if value]):
        raise UserError(f"{flags[0]} is for --all, which was not given. Add it, or omit this flag.")
    if options.all and (recipe or options.against or options.growth):
        other = recipe or ("--growth" if options.growth else "--against")
        raise UserError(
            f"--all measures every method, so that {other} has no effect. Leave one of the two out."
        )
    of_peer = {"--workers": options.workers, "--epoch-images": options.epoch_images}
    if not options.against and (flags := [flag for flag, value in of_peer.items() if value]):
        raise UserError(
            f"{flags[0]} is for --against lightly, which was not given. Add it, or omit this flag."
        )
    if options.against not in (None, "lightly"):
        raise UserError(
            f'--against is "{options.against}"; the only library to compare with is lightly.'
        )
    if not 0 < options.seconds < math.inf:
        raise UserError(f"--seconds is {options.seconds:g}; it must be a number above 0, say 2.")
    if options.growth and (options.against or options.data):
        flag = "--against" if options.against else "--data"
        raise UserError(
            f"--growth measures steps on random images, so that {flag} has no effect. "
            "Leave one of the two out."
        )


def _use_cores(count: int) -> None:
    """Let this process, and those that it starts, use the first `count` of its cores."""
    if not hasattr(os, "sched_setaffinity"):
        raise UserError("--cores needs Linux, which can keep a process to some cores.")
    cores = sorted(os.sched_getaffinity(0))
    if count > len(cores):
        raise UserError(f"--cores is {count}, but this process may use {len(cores)}.")
    os.sched_setaffinity(0, cores[:count])


def _compare(
    recipe: Recipe, device: torch.device, options: BenchOptions, ours: float, console: Console
) -> dict[str, Any]:
    """Measure Lightly with each number of workers; the fastest is compared."""
    source, tried = open_recipe_source(recipe), list[dict[str, float]]()
    for workers in options.workers or (available_cpus(),):
        measured = measure_lightly(
            recipe,
            source,
            device,
            seconds=max(options.seconds, 5.0),
            workers=workers,
            epoch_images=options.epoch_images,
        )
        ratio = ours / measured["end to end"]
        tried.append({"workers": workers} | measured | {"ratio": ratio})
        console.print(
            f"Lightly, {workers} workers: augmentation {measured['augment']:,.0f} images/s, end to "
            f"end {measured['end to end']:,.0f} images/s; this is {ratio:.1f} times as fast."
        )
    best = min(tried, key=lambda one: one["ratio"])
    return best | {"cores": available_cpus(), "epoch_images": options.epoch_images, "tried": tried}


def _generate_images(recipe: Recipe, folder: Path, console: Console) -> str:
    if recipe.views[0].size <= SMALL_VIEW:
        return "shapes"
    images = folder / "images"
    if not images.exists():
        console.print(f"Writing {NUM_GENERATED} images to measure with ...")
    return str(write_photo_like_images(images, NUM_GENERATED))
