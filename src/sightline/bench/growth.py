"""How time and memory of a step grow with the batch, the pictures, the queue and the views."""

import gc
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from rich.console import Console

from sightline.bench.measure import end_to_end
from sightline.data.pictures import Pictures
from sightline.methods import MethodConfig
from sightline.recipe import Recipe
from sightline.train.step import settle

TIMES = (1, 2, 4, 8)
PICTURES = (10_000, 100_000, 1_000_000)
FEW = 4096  # pictures, where their number is not what grows
SIDE = 32  # pixels of a kept picture: a million of them take 3 GiB


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of one step, with one thing set to a value and all others as the recipe has them."""

    what: str
    value: int
    ms: float
    images_per_second: float
    memory: int | None  # bytes of a GPU, the most that were in use at once

    def to_dict(self) -> dict[str, Any]:
        """Plain values that JSON can hold."""
        return asdict(self)


def costs(recipe: Recipe, device: torch.device, *, seconds: float, console: Console) -> list[Cost]:
    """Steps on random pixels that lie in memory, one thing after the other made larger."""
    settle(recipe, device)
    found = []
    for what, value, made, count in _cases(recipe):
        pictures = _random(count, made.data.channels).to(device)
        _forget(device)
        ms = end_to_end(made, pictures, device, seconds)["ms"]
        cost = Cost(
            what=what,
            value=value,
            ms=ms,
            images_per_second=1000 * made.batch_size / ms,
            memory=torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
        )
        found.append(cost)
        space = "" if cost.memory is None else f"{cost.memory / 2**20:12,.0f} MiB"
        rate = f"{cost.images_per_second:11,.0f} pictures/s"
        console.print(f"{what:<12}{value:>12,}{ms:12.2f} ms{rate}{space}", highlight=False)
    return found


def _cases(recipe: Recipe) -> Iterator[tuple[str, int, Recipe, int]]:
    """What grows, its value, the recipe with it, and the number of pictures."""
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
    for count in PICTURES:
        yield "pictures", count, recipe, count


def _with(recipe: Recipe, **changes: Any) -> Recipe:
    """The recipe with a changed method, and as many views as that takes."""
    method: MethodConfig = replace(recipe.method, **changes)
    return replace(recipe, method=method, views=recipe.views[:1] * method.num_views)


def _random(count: int, channels: int) -> Pictures:
    made = torch.Generator().manual_seed(0)
    flat = torch.randint(0, 256, (count * channels * SIDE**2,), generator=made, dtype=torch.uint8)
    side = torch.full((count,), SIDE)
    return Pictures(flat, side, side, channels=channels, names=[""] * count)


def _forget(device: torch.device) -> None:
    """Count the most memory from here on."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
