"""Plan the time: measure how fast a recipe trains, and how many epochs fit."""

import gc
import time

import torch

from selfsight.data import ImageStore
from selfsight.errors import UserError
from selfsight.recipe import Recipe
from selfsight.train.cuda_graph import CHOICE, can_record
from selfsight.train.init_weights import Weights
from selfsight.train.loop import load_batches, train
from selfsight.train.pretrain import build_loader, build_new_state

TIMED_SECONDS, TIMED_STEPS = 2.0, 20  # whichever comes first
RESERVE = 1.2  # measuring later arms may take this much longer than the first


def measure_speed(
    recipe: Recipe, images: ImageStore, device: torch.device, start: Weights | None
) -> float:
    """Train for some steps, discard them, and return images per second."""
    try:
        return _time_steps(recipe, images, device, start)
    except torch.OutOfMemoryError:
        raise UserError(
            f"A batch of {recipe.batch_size} does not fit in GPU memory. Use a smaller "
            "--batch-size."
        ) from None
    finally:
        gc.collect()  # a recorded step refers to itself, and keeps the memory of its graph


def _time_steps(
    recipe: Recipe, images: ImageStore, device: torch.device, start: Weights | None
) -> float:
    state = build_new_state(recipe, images, device, start=start)
    loader = build_loader(recipe, images, device)
    untimed = CHOICE if can_record(recipe, device) else 1
    steps = train(
        state,
        load_batches(loader, recipe, 0),
        recipe,
        steps_per_epoch=loader.steps_per_epoch,
        device=device,
    )
    began, timed = time.monotonic(), 0
    for number, _ in enumerate(steps, 1):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if number <= untimed:
            began = time.monotonic()
            continue
        timed += 1
        if timed == TIMED_STEPS or (timed > 1 and time.monotonic() - began > TIMED_SECONDS):
            break
    seconds = max(time.monotonic() - began, 1e-6)
    return max(timed, 1) * recipe.batch_size / seconds


def fit_epochs(seconds: float, images_per_second: float, images: int, *, most: int) -> int:
    """Number of epochs that fit into these seconds, at most `most`."""
    return max(0, min(most, int(seconds * images_per_second / images)))
