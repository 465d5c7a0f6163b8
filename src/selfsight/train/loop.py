"""The training loop, as a generator: it trains, and its caller logs, saves and evaluates."""

from collections.abc import Iterable, Iterator

import torch

from selfsight.data.loader import Loader
from selfsight.methods import Step
from selfsight.recipe import Recipe
from selfsight.train.compile_ahead import CompileAhead
from selfsight.train.cuda_graph import StepRunner
from selfsight.train.cudnn_and_determinism import configure_torch
from selfsight.train.step import Batch, compute_views
from selfsight.train.training_state import State


def train(
    state: State,
    batches: Iterable[Batch],
    recipe: Recipe,
    *,
    steps_per_epoch: int,
    device: torch.device,
    ahead: CompileAhead | None = None,
) -> Iterator[tuple[Batch, Step]]:
    """Advance the state one optimizer step per batch; at every yield it is safe to save.

    With `ahead`, steps run uncompiled until another process has compiled their code.
    """
    configure_torch(recipe, device)
    run_step = StepRunner(
        state, recipe, steps_per_epoch=steps_per_epoch, device=device, ahead=ahead
    )
    for batch in batches:
        if state.step >= recipe.epochs * steps_per_epoch:
            return
        yield batch, run_step(batch)


def load_batches(loader: Loader, recipe: Recipe, start_step: int) -> Iterator[Batch]:
    """Yield batches from this step on: images if they are stored on a GPU, else their views."""
    waited = loader.wait_seconds
    for raw in loader.batches(start_step):
        waited, before = loader.wait_seconds, waited
        if loader.resident and raw.index.device.type == "cuda":
            yield Batch([], raw.labels, raw.index, waited - before, raw.images)
        else:
            views = compute_views(recipe, raw.images, raw.index, raw.epoch)
            yield Batch(views, raw.labels, raw.index, waited - before)
