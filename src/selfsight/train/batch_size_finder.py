"""Find a batch size that fits in device memory, by trying."""

import gc
from dataclasses import replace

import torch

from selfsight import rng
from selfsight.errors import UserError
from selfsight.methods import DataInfo
from selfsight.optim import build_optimizer
from selfsight.recipe import Recipe
from selfsight.train.grad_scaler import GradScaler
from selfsight.train.init_weights import build_method
from selfsight.train.loop import train
from selfsight.train.step import DTYPES, Batch
from selfsight.train.training_state import State

TRIAL_STEPS = 2  # in the second one the optimizer has its state


def halve_batch_until_it_fits(recipe: Recipe, device: torch.device, data: DataInfo) -> Recipe:
    """Return the recipe with its batch size halved until a step on one process fits."""
    batch_size = recipe.batch_size // 2
    while batch_size >= 2:
        try:
            smaller = replace(recipe, batch_size=batch_size)
        except UserError:  # for example batch norm in groups that do not divide it
            break
        if _fits(smaller, device, data):
            return smaller
        batch_size //= 2
    raise UserError(
        f"No batch smaller than {recipe.batch_size} that these settings allow fits in the memory "
        "of this device. Use a smaller backbone (--backbone.name resnet18) or smaller views."
    )


def _fits(recipe: Recipe, device: torch.device, data: DataInfo) -> bool:
    """Return whether optimizer steps on random images fit in memory."""
    gc.collect()
    torch.cuda.empty_cache()
    try:
        method = build_method(recipe, device, data)
        optimizer = build_optimizer(
            recipe.optim, method.named_parameters(), batch_size=recipe.batch_size
        )
        state = State(method, optimizer, GradScaler(device, enabled=recipe.precision == "fp16"))
        batches = (_random_batch(recipe, device, data) for _ in range(TRIAL_STEPS))
        uncompiled = replace(recipe, compile=False)
        for _ in train(state, batches, uncompiled, steps_per_epoch=TRIAL_STEPS, device=device):
            pass
    except torch.OutOfMemoryError:
        return False
    return True


def _random_batch(recipe: Recipe, device: torch.device, data: DataInfo) -> Batch:
    index = torch.arange(recipe.batch_size, device=device)
    views = [
        rng.uniform(rng.key(0, "memory", i), index, recipe.data.channels * view.size**2)
        .to(DTYPES[recipe.precision])
        .view(len(index), recipe.data.channels, view.size, view.size)
        for i, view in enumerate(recipe.views)
    ]
    return Batch(views, index % max(1, data.num_classes), index)
