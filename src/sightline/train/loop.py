"""The training loop, as a generator: it trains, and whoever drives it logs, saves and evaluates."""

import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sightline import dist
from sightline.data.loader import Loader
from sightline.methods import Method, Moment, Step
from sightline.optim import clip_gradients, set_lr
from sightline.recipe import Recipe
from sightline.train.probe import Probe
from sightline.views import make_views

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "float32": torch.float32}


class Batch(NamedTuple):
    """One tensor per view; labels are for probes only."""

    views: list[Tensor]
    labels: Int64[Tensor, " n"] | None
    index: Int64[Tensor, " n"]  # type: ignore[assignment]
    waited: float  # seconds that passed before the pixels came


@dataclass
class State:
    """Exactly what a checkpoint holds; `step` is also the data cursor."""

    method: Method
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.grad_scaler.GradScaler
    probe: Probe | None = None
    step: int = 0

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values only, so that it loads without running code."""
        return {
            "method": self.method.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "probe": self.probe.state_dict() if self.probe else None,
            "step": self.step,
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go back to where `state_dict` was taken."""
        self.method.load_state_dict(saved["method"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.scaler.load_state_dict(saved["scaler"])
        if self.probe and saved["probe"]:
            self.probe.load_state_dict(saved["probe"])
        self.step = saved["step"]


def feed(loader: Loader, recipe: Recipe, start_step: int) -> Iterator[Batch]:
    """Pixels from the loader, made into views on the device."""
    since = time.perf_counter()
    for raw in loader.batches(start_step):
        waited = time.perf_counter() - since
        views = make_views(
            recipe.views, raw.pixels, raw.sizes, raw.index, seed=recipe.seed, epoch=raw.epoch
        )
        views = [view.contiguous(memory_format=torch.channels_last) for view in views]
        yield Batch(views, raw.labels, raw.index, waited)
        since = time.perf_counter()


def train(
    state: State,
    batches: Iterable[Batch],
    recipe: Recipe,
    *,
    steps_per_epoch: int,
    device: torch.device,
) -> Iterator[tuple[Batch, Step]]:
    """Advance state one optimizer step per batch; at every yield it is safe to save."""
    method, optimizer, scaler = state.method, state.optimizer, state.scaler
    forward = _wrapped(method, recipe, device)
    total_steps = recipe.epochs * steps_per_epoch
    step_on_device = torch.tensor(state.step, device=device)

    for batch in batches:
        if state.step >= total_steps:
            return
        at = Moment(
            step=step_on_device.clone(),
            index=batch.index,
            seed=recipe.seed,
            total_steps=total_steps,
            steps_per_epoch=steps_per_epoch,
            labels=batch.labels if recipe.method.needs_labels else None,
        )
        set_lr(
            optimizer,
            recipe.optim,
            step=state.step,
            steps_per_epoch=steps_per_epoch,
            epochs=recipe.epochs,
            batch_size=recipe.batch_size,
        )
        with torch.autocast(
            device.type, DTYPES[recipe.precision], enabled=recipe.precision != "float32"
        ):
            step = forward(batch.views, at)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(step.loss).backward()
        if recipe.optim.clip is not None:
            scaler.unscale_(optimizer)
            clip_gradients(optimizer, recipe.optim)
        scaler.step(optimizer)
        scaler.update()
        method.after_step(at)
        state.step += 1
        step_on_device += 1

        yield batch, Step(step.loss.detach(), step.features.detach(), step.logs)


def _wrapped(method: Method, recipe: Recipe, device: torch.device) -> nn.Module:
    """The method as it is called: compiled if the recipe says so, averaged over processes."""
    forward: nn.Module = method
    if recipe.compile:
        # Losses and crops want all of float32; the networks are in bf16 anyway.
        warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
        forward = torch.compile(forward)  # type: ignore[assignment]
    if dist.world_size() > 1:
        ids = [device.index] if device.type == "cuda" else None
        forward = DistributedDataParallel(forward, device_ids=ids, broadcast_buffers=False)
    return forward
