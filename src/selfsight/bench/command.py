"""What `selfsight bench` does: settle recipe and images, measure, and say it in a table."""

import math
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from selfsight import auto_recipe
from selfsight.bench import lightly_peer
from selfsight.bench.breakdown import bench, words
from selfsight.bench.generated_images import photographs
from selfsight.bench.scaling import costs
from selfsight.catalog import build_recipe
from selfsight.errors import UserError
from selfsight.options import BENCH_DEFAULTS, BenchOptions
from selfsight.recipe import Recipe, override
from selfsight.runs.start_resume import open_recipe_source

ON_CPU, ON_GPU = "simclr.shapes", "moco.cifar10_r18_200ep"
MADE = 4096  # photographs, where a recipe's views are large and no images are given
SMALL = 64  # pixels of a view up to which the built-in set serves


def run(
    recipe: str | None = None,
    options: BenchOptions = BENCH_DEFAULTS,
    /,
    *,
    quiet: bool = False,
    **changes: Any,
) -> dict[str, Any]:
    """Measure the speed of a recipe and print it. Keywords are the fields of BenchOptions."""
    options = replace(options, **changes)
    _check_options(options)
    seconds, against = options.seconds, options.against
    console, device = Console(quiet=quiet), auto_recipe.resolve_device(options.device)
    name = recipe or (ON_GPU if device.type == "cuda" else ON_CPU)
    made = build_recipe(name)
    if device.type == "cuda":
        made = replace(made, compile=True)
    given = {"batch_size": options.batch_size}
    made = override(made, given, options.settings, command="bench RECIPE")
    if against:
        lightly_peer.check(made)
    made, _ = auto_recipe.adapt_to_device(made, device)
    if options.growth:
        console.print(f"{name}, random images, {device}", highlight=False)
        grown = costs(made, device, seconds=seconds, console=console)
        return {"recipe": name, "growth": [cost.to_dict() for cost in grown]}
    with tempfile.TemporaryDirectory(prefix="selfsight-bench-") as folder:
        path = str(options.data) if options.data else _generated(made, Path(folder), console)
        made = replace(made, data=replace(made.data, path=path))
        console.print(f"{name}, batch {made.batch_size}, {path}, {device}", highlight=False)
        figures = bench(name, made, device, seconds=seconds, console=console)
        console.print(words(figures), highlight=False)
        measured = figures.to_dict()
        if against:
            measured[against] = _beside(made, device, seconds, figures.images_per_second, console)
    return measured


def _check_options(options: BenchOptions) -> None:
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


def _beside(
    recipe: Recipe, device: torch.device, seconds: float, ours: float, console: Console
) -> dict[str, float]:
    found = lightly_peer.lightly(
        recipe, open_recipe_source(recipe), device, seconds=max(seconds, 5.0)
    )
    ratio = ours / found["end to end"]
    console.print(
        f"Lightly: augmentation {found['augment']:,.0f} images/s, end to end "
        f"{found['end to end']:,.0f} images/s; this is {ratio:.1f} times as fast.",
        highlight=False,
    )
    return found | {"ratio": ratio}


def _generated(recipe: Recipe, folder: Path, console: Console) -> str:
    if recipe.views[0].size <= SMALL:
        return "shapes"
    console.print(f"Writing {MADE} images to measure with ...", highlight=False)
    return str(photographs(folder / "images", MADE))
