"""Measure how a step's time and memory grow with batch, queue, views, images and processes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from rich.console import Console

from selfsight.bench import process_scaling
from selfsight.bench.step_cost import StepCost, measure_step
from selfsight.errors import UserError
from selfsight.methods import MethodConfig
from selfsight.recipe import Recipe
from selfsight.terminal.console import fit_line
from selfsight.train.cudnn_and_determinism import configure_torch

FACTORS = (1, 2, 4, 8)
NUM_IMAGES = (10_000, 100_000, 1_000_000)
DEFAULT_NUM_IMAGES = 4096  # where their number is not varied


@dataclass(frozen=True, kw_only=True)
class ScalingPoint:
    """Cost of a step with one setting varied and the others as in the recipe."""

    varied: str
    value: int
    ms: float
    images_per_second: float
    memory: int | None  # peak bytes on a GPU, the largest over processes


def measure_scaling(
    recipe: Recipe, device: torch.device, *, seconds: float, console: Console
) -> list[ScalingPoint]:
    """Measure steps on random images in memory, increasing one setting after the other."""
    configure_torch(recipe, device)
    points = []

    def add(varied: str, value: int, batch_size: int, cost: StepCost) -> None:
        images_per_second = 1000 * batch_size / cost.ms
        points.append(
            ScalingPoint(
                varied=varied,
                value=value,
                ms=cost.ms,
                images_per_second=images_per_second,
                memory=cost.memory,
            )
        )
        cells = [f"{cost.ms:12.2f} ms", f"{images_per_second:11,.0f} images/s"]
        if cost.memory is not None:
            cells.append(f"{cost.memory / 2**20:12,.0f} MiB")
        lines = fit_line(f"{varied:<12}{value:>12,}", cells, console.width)
        console.print(*lines, sep="\n", soft_wrap=True)

    stopped = ""
    for varied, value, change, num_images in _cases(recipe):
        if varied == stopped:
            continue
        try:
            changed = change()
        except UserError as error:
            stopped = varied
            console.print(f"{varied}: stopped here. {error}", soft_wrap=True)
            continue
        cost = measure_step(changed, num_images, device, seconds=seconds)
        add(varied, value, changed.batch_size, cost)
    for processes, changed, cost in _process_cases(recipe, device, seconds, console):
        add("processes", processes, changed.batch_size, cost)
    return points


def _cases(recipe: Recipe) -> Iterator[tuple[str, int, Callable[[], Recipe], int]]:
    """Yield the varied setting, its value, what builds the recipe, and the number of images."""
    method: Any = recipe.method
    for factor in FACTORS:
        batch = recipe.batch_size * factor
        change = partial(replace, recipe, batch_size=batch)
        yield "batch", batch, change, max(DEFAULT_NUM_IMAGES, 2 * batch)
    num_images = max(DEFAULT_NUM_IMAGES, 2 * recipe.batch_size)
    for factor in FACTORS if getattr(method, "queue_size", 0) else ():
        size = method.queue_size * factor
        yield "queue", size, partial(_with_method, recipe, queue_size=size), num_images
    for factor in FACTORS if "num_views" in method.__dataclass_fields__ else ():
        change = partial(_with_method, recipe, num_views=2 * factor)
        yield "views", 2 * factor, change, num_images
    for num_images in NUM_IMAGES:
        yield "images", num_images, partial(replace, recipe), num_images


def _process_cases(
    recipe: Recipe, device: torch.device, seconds: float, console: Console
) -> Iterator[tuple[int, Recipe, StepCost]]:
    """Yield numbers of processes, the recipe with the global batch, and the cost of a step."""
    largest, batch_size = process_scaling.max_processes(device), recipe.batch_size
    if largest < 2:
        unit = "GPU" if device.type == "cuda" else "usable core"
        reason = f"each process needs its own {unit}, and this machine has one"
        console.print(f"processes: not measured, since {reason}.", soft_wrap=True)
        return
    threads = process_scaling.threads_per_process(largest)
    num_images = max(DEFAULT_NUM_IMAGES, 2 * batch_size * largest)
    unit = "thread" if threads == 1 else "threads"
    heading = f"processes, each with {batch_size} images and {threads} {unit}:"
    console.print(heading)
    for processes in process_scaling.process_counts(largest):
        try:
            changed = replace(recipe, batch_size=batch_size * processes)
        except UserError as error:
            console.print(f"processes: stopped here. {error}", soft_wrap=True)
            return
        cost = process_scaling.measure_processes(
            changed, num_images, device, processes=processes, threads=threads, seconds=seconds
        )
        yield processes, changed, cost


def _with_method(recipe: Recipe, **changes: Any) -> Recipe:
    """Return the recipe with a changed method and the number of views that it needs."""
    method: MethodConfig = replace(recipe.method, **changes)
    return replace(recipe, method=method, views=method.match_views(recipe.views))
