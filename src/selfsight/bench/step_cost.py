"""Time and memory of one step on random pixels that lie in memory."""

import gc
from typing import NamedTuple

import torch

from selfsight.bench.breakdown import end_to_end
from selfsight.data.image_store import Images
from selfsight.recipe import Recipe

SIDE = 32  # pixels of a kept image: a million of them take 3 GiB


class Spent(NamedTuple):
    """What a step took of this process."""

    ms: float
    memory: int | None  # bytes of a GPU, the most that were in use at once


def step(recipe: Recipe, count: int, device: torch.device, *, seconds: float) -> Spent:
    """Measure steps with so many images to choose from."""
    images = _random(count, recipe.data.channels).to(device)
    _forget(device)
    ms = end_to_end(recipe, images, device, seconds)["ms"]
    return Spent(ms, torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None)


def _random(count: int, channels: int) -> Images:
    made = torch.Generator().manual_seed(0)
    flat = torch.randint(0, 256, (count * channels * SIDE**2,), generator=made, dtype=torch.uint8)
    side = torch.full((count,), SIDE)
    return Images(flat, side, side, channels=channels, names=[""] * count)


def _forget(device: torch.device) -> None:
    """Count the most memory from here on."""
    gc.collect()
    if device.type == "cuda":
        # Each step that is recorded has a stream of its own, and each stream workspaces.
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
