"""Plan the time: measure how fast a recipe trains, and how many epochs fit."""

import gc

import torch

from selfsight.data import ImageStore
from selfsight.errors import UserError
from selfsight.recipe import Recipe
from selfsight.train.init_weights import Weights
from selfsight.train.loop import load_batches
from selfsight.train.pretrain import build_loader, build_new_state
from selfsight.train.trial_steps import time_steps

RESERVE = 1.2  # measuring later arms may take this much longer than the first


def measure_speed(
    recipe: Recipe, images: ImageStore, device: torch.device, start: Weights | None
) -> float:
    """Train for some steps, discard them, and return images per second."""
    try:
        state = build_new_state(recipe, images, device, start=start)
        loader = build_loader(recipe, images, device)
        batches, per_epoch = load_batches(loader, recipe, 0), loader.steps_per_epoch
        return time_steps(state, batches, recipe, steps_per_epoch=per_epoch, device=device)
    except torch.OutOfMemoryError:
        raise UserError(
            f"A batch of {recipe.batch_size} does not fit in GPU memory. Use a smaller "
            "--batch-size."
        ) from None
    finally:
        gc.collect()  # a recorded step refers to itself, and keeps the memory of its graph


def fit_epochs(seconds: float, images_per_second: float, images: int, *, most: int) -> int:
    """Number of epochs that fit into these seconds, at most `most`."""
    return max(0, min(most, int(seconds * images_per_second / images)))
