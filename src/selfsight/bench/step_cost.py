"""Measure time and memory of one training step on random images in memory."""

from typing import NamedTuple

import torch

from selfsight.bench.step_breakdown import time_training
from selfsight.bench.timer import peak_memory, reset_peak_memory
from selfsight.data import CachedImages
from selfsight.recipe import Recipe

SIDE = 32  # pixels; a million such images take 3 GiB


class StepCost(NamedTuple):
    """Time and memory of one step in this process."""

    ms: float
    memory: int | None  # peak bytes on the GPU; None on a CPU


def measure_step(
    recipe: Recipe, num_images: int, device: torch.device, *, seconds: float
) -> StepCost:
    """Measure the steps of a recipe on this many random images."""
    images = _random_images(num_images, recipe.data.channels).to(device)
    reset_peak_memory(device)
    ms = time_training(recipe, images, device, seconds).ms
    return StepCost(ms, peak_memory(device))


def _random_images(count: int, channels: int) -> CachedImages:
    generator = torch.Generator().manual_seed(0)
    flat = torch.randint(
        0, 256, (count * channels * SIDE**2,), generator=generator, dtype=torch.uint8
    )
    side = torch.full((count,), SIDE)
    return CachedImages(flat, side, side, channels=channels, names=[""] * count)
