"""Find a batch size that fits in the device's memory, by trying."""

import gc
from dataclasses import replace

import torch

from selfsight import rng
from selfsight.errors import UserError
from selfsight.methods import DataInfo, Moment
from selfsight.recipe import Recipe
from selfsight.train.pretrain import build_method
from selfsight.train.step import autocast


def halve_batch_until_it_fits(recipe: Recipe, device: torch.device) -> Recipe:
    """Return the recipe with its batch size halved until a step fits."""
    while recipe.batch_size > 2:
        recipe = replace(recipe, batch_size=recipe.batch_size // 2)
        if _fits(recipe, device):
            return recipe
    raise UserError(
        "Not even a batch of 2 fits in the memory of this device. Use a smaller backbone "
        "(--backbone.name resnet18) or smaller views."
    )


def _fits(recipe: Recipe, device: torch.device) -> bool:
    """Return whether a forward and backward pass on random images fits in memory."""
    gc.collect()
    torch.cuda.empty_cache()
    index = torch.arange(recipe.batch_size, device=device)
    try:
        method = build_method(recipe, device, DataInfo(len(index), 2))
        views = [
            rng.uniform(rng.key(0, "memory", i), index, recipe.data.channels * view.size**2)
            .float()
            .view(len(index), recipe.data.channels, view.size, view.size)
            for i, view in enumerate(recipe.views)
        ]
        at = Moment(
            step=torch.tensor(0, device=device),
            index=index,
            seed=recipe.seed,
            total_steps=1,
            steps_per_epoch=1,
        )
        with autocast(recipe, device), torch.compiler.set_stance("force_eager"):
            method(views, at).loss.backward()
    except torch.OutOfMemoryError:
        return False
    return True
