"""How a step's time and memory grow with batch, queue, views, images and processes."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from rich.console import Console

from selfsight.bench import multi_process
from selfsight.bench.step_cost import Spent, step
from selfsight.errors import UserError
from selfsight.methods import MethodConfig
from selfsight.recipe import Recipe
from selfsight.train.step import settle

TIMES = (1, 2, 4, 8)
IMAGES = (10_000, 100_000, 1_000_000)
FEW = 4096  # images, where their number is not what grows


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of one step, with one thing set to a value and all others as the recipe has them."""

    what: str
    value: int
    ms: float
    images_per_second: float
    memory: int | None  # bytes of a GPU, the most that a process used at once

    def to_dict(self) -> dict[str, Any]:
        """Plain values that JSON can hold."""
        return asdict(self)


def costs(recipe: Recipe, device: torch.device, *, seconds: float, console: Console) -> list[Cost]:
    """Steps on random pixels that lie in memory, one thing after the other made larger."""
    settle(recipe, device)
    found = []

    def see(what: str, value: int, batch_size: int, spent: Spent) -> None:
        rate = 1000 * batch_size / spent.ms
        found.append(
            Cost(what=what, value=value, ms=spent.ms, images_per_second=rate, memory=spent.memory)
        )
        space = "" if spent.memory is None else f"{spent.memory / 2**20:12,.0f} MiB"
        line = f"{what:<12}{value:>12,}{spent.ms:12.2f} ms{rate:11,.0f} images/s{space}"
        console.print(line, highlight=False)

    for what, value, made, count in _cases(recipe):
        see(what, value, made.batch_size, step(made, count, device, seconds=seconds))
    for number, made, spent in _shared(recipe, device, seconds, console):
        see("processes", number, made.batch_size, spent)
    return found


def _cases(recipe: Recipe) -> Iterator[tuple[str, int, Recipe, int]]:
    """What grows, its value, the recipe with it, and the number of images."""
    method: Any = recipe.method
    for times in TIMES:
        batch = recipe.batch_size * times
        yield "batch", batch, replace(recipe, batch_size=batch), max(FEW, 2 * batch)
    few = max(FEW, 2 * recipe.batch_size)
    for times in TIMES if getattr(method, "queue_size", 0) else ():
        size = method.queue_size * times
        yield "queue", size, _with(recipe, queue_size=size), few
    for times in TIMES if "num_views" in method.__dataclass_fields__ else ():
        yield "views", 2 * times, _with(recipe, num_views=2 * times), few
    for count in IMAGES:
        yield "images", count, recipe, count


def _shared(
    recipe: Recipe, device: torch.device, seconds: float, console: Console
) -> Iterator[tuple[int, Recipe, Spent]]:
    """Numbers of processes, the recipe with the batch of all, and what a step takes."""
    largest, own = multi_process.most(device), recipe.batch_size
    if largest < 2:
        unit = "GPU" if device.type == "cuda" else "usable core"
        reason = f"a process needs a {unit} of its own, and this machine has one"
        console.print(f"processes: not measured, for {reason}.", highlight=False, soft_wrap=True)
        return
    each, few = multi_process.threads(largest), max(FEW, 2 * own * largest)
    words = f"processes, each with {own} images and {each} thread{'s' if each > 1 else ''}:"
    console.print(words, highlight=False)
    for number in multi_process.counts(largest):
        try:
            made = replace(recipe, batch_size=own * number)
        except UserError as refusal:
            console.print(
                f"processes: no more than this. {refusal}", highlight=False, soft_wrap=True
            )
            return
        spent = multi_process.together(
            made, few, device, processes=number, each=each, seconds=seconds
        )
        yield number, made, spent


def _with(recipe: Recipe, **changes: Any) -> Recipe:
    """The recipe with a changed method, and as many views as that takes."""
    method: MethodConfig = replace(recipe.method, **changes)
    return replace(recipe, method=method, views=recipe.views[:1] * method.num_views)
