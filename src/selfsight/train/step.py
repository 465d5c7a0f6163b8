"""One optimizer step, from images to the updated teacher; the host reads nothing back."""

from typing import NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from selfsight.methods import Moment, Step
from selfsight.nn.batch_norm import average_running_statistics
from selfsight.optim import clip_gradients, gradient_norms
from selfsight.ragged_batch import Ragged
from selfsight.recipe import Recipe
from selfsight.train.compile import compile_stance
from selfsight.train.frozen_parameters import copy_frozen, restore_frozen
from selfsight.train.skipped_steps import StatisticsBefore, step_if_finite
from selfsight.train.training_state import State
from selfsight.views import apply_views

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "float32": torch.float32}


def autocast(recipe: Recipe, device: torch.device) -> torch.autocast:
    """Return the context in which networks compute in the recipe's precision."""
    dtype = DTYPES[recipe.precision]
    return torch.autocast(device.type, dtype, enabled=dtype != torch.float32)


class Batch(NamedTuple):
    """The input of one step: images if they are on the device, else their views."""

    views: list[Tensor]  # empty if the step computes them from `images`
    labels: Int64[Tensor, " n"] | None
    index: Int64[Tensor, " n"]  # type: ignore[assignment]  # hides tuple.index, on purpose
    data_wait: float = 0.0  # seconds that the loop waited for this batch
    images: Ragged | None = None

    def tensors(self) -> list[Tensor]:
        """Return all tensors that change from step to step."""
        tensors = [*self.views, self.index]
        tensors += [] if self.labels is None else [self.labels]
        tensors += [] if self.images is None else [self.images.starts, self.images.sizes]
        return tensors

    def with_tensors(self, tensors: list[Tensor]) -> "Batch":
        """Replace all tensors by others in the order of `tensors`."""
        rest = iter(tensors)
        views = [next(rest) for _ in self.views]
        index = next(rest)
        labels = None if self.labels is None else next(rest)
        images = self.images
        if images is not None:
            images = images._replace(starts=next(rest), sizes=next(rest))
        return Batch(views, labels, index, images=images)


def compute_views(
    recipe: Recipe, images: Ragged, index: Int64[Tensor, " n"], epoch: int | Tensor
) -> list[Tensor]:
    """Compute the recipe's views of these images, in the precision of the network."""
    dtype = DTYPES[recipe.precision]
    return apply_views(recipe.views, images, index, seed=recipe.seed, epoch=epoch, dtype=dtype)


def optimizer_step(
    state: State,
    forward: nn.Module,
    batch: Batch,
    recipe: Recipe,
    *,
    step: Int64[Tensor, ""],
    steps_per_epoch: int,
) -> Step:
    """Run views, forward, backward, optimizer, after_step and probe; `step` is on the device."""
    device = step.device
    at = Moment(
        step=step,
        index=batch.index,
        seed=recipe.seed,
        total_steps=recipe.epochs * steps_per_epoch,
        steps_per_epoch=steps_per_epoch,
        labels=batch.labels if recipe.method.needs_labels else None,
    )
    views = batch.views
    if batch.images is not None:
        views = compute_views(recipe, batch.images, batch.index, step // steps_per_epoch)
    statistics = StatisticsBefore(
        [state.method] if state.probe is None else [state.method, state.probe.layer]
    )
    with autocast(recipe, device), compile_stance(recipe, device):
        result = forward(views, at)

    state.optimizer.zero_grad(set_to_none=True)
    loss = result.loss * state.scaler.scale if state.scaler.enabled else result.loss
    loss.backward()
    params = [p for group in state.optimizer.param_groups for p in group["params"]]
    found_inf = state.scaler.unscale([p.grad for p in params if p.grad is not None], step)
    logs = dict(result.logs)
    if recipe.log_gradients:  # before clipping; read only when a record is logged
        norms = gradient_norms(state.method.named_parameters())
        logs |= {f"grad_norm.{layer}": norm for layer, norm in norms.items()}
    clip_gradients(state.optimizer, recipe.optim.clip)
    copies = copy_frozen(state.method, state.optimizer, result.frozen)
    step_if_finite(state.optimizer, found_inf)
    restore_frozen(state.optimizer, copies)
    state.method.after_step(at, result._replace(skipped=found_inf))
    average_running_statistics(state.method)

    if state.probe is not None and batch.labels is not None:
        logs["probe"] = state.probe.update(result.features, batch.labels, found_inf)
    statistics.restore_if(found_inf)
    return Step(result.loss.detach(), result.features.detach(), logs=logs)
