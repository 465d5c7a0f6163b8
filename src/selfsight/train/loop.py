"""The training loop, as a generator: it trains, and whoever drives it logs, saves and evaluates."""

from collections.abc import Iterable, Iterator

import torch

from selfsight.data.loader import Loader
from selfsight.methods import Step
from selfsight.recipe import Recipe
from selfsight.train.state import State
from selfsight.train.step import Batch, Stepper, make

__all__ = ["Batch", "State", "feed", "train"]


def feed(loader: Loader, recipe: Recipe, start_step: int) -> Iterator[Batch]:
    """What each step is made from: views, or images on a GPU that makes views of them itself."""
    waited = loader.wait_seconds
    for raw in loader.batches(start_step):
        waited, before = loader.wait_seconds, waited
        if loader.resident and raw.index.device.type == "cuda":
            yield Batch([], raw.labels, raw.index, waited - before, raw.images)
        else:
            views = make(recipe, raw.images, raw.index, raw.epoch)
            yield Batch(views, raw.labels, raw.index, waited - before)


def train(
    state: State,
    batches: Iterable[Batch],
    recipe: Recipe,
    *,
    steps_per_epoch: int,
    device: torch.device,
) -> Iterator[tuple[Batch, Step]]:
    """Advance state one optimizer step per batch; at every yield it is safe to save."""
    take_step = Stepper(state, recipe, steps_per_epoch=steps_per_epoch, device=device)
    for batch in batches:
        if state.step >= recipe.epochs * steps_per_epoch:
            return
        yield batch, take_step(batch)
