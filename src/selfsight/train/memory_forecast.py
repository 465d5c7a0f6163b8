"""Predict the memory of a recipe: a lower bound that is always checked, and a forecast."""

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from selfsight import dist
from selfsight.data.cgroup_limits import free_memory, processes_per_machine
from selfsight.errors import UserError
from selfsight.methods import DataInfo, Moment
from selfsight.recipe import Recipe
from selfsight.terminal.console import format_bytes
from selfsight.train.init_weights import build_method
from selfsight.train.step import DTYPES, autocast

COPIES = {"sgd": 3, "lars": 3, "adamw": 4, "lamb": 4}  # weights, gradients, optimizer state


def check_memory(recipe: Recipe, num_images: int, device: torch.device) -> None:
    """Raise a UserError if weights, optimizer, queue, memory bank and views cannot fit.

    Activations for the backward pass are not counted (`foresee_memory` does): on a GPU a trial
    finds out, and an automatic batch size is lowered.
    """
    with torch.device("meta"):
        method = recipe.method.build(recipe.backbone.build(), DataInfo(num_images, 2))
    sizes = {name: count_bytes(tensor) for name, tensor in method.state_dict().items()}
    trained = sum(count_bytes(p) for p in method.parameters() if p.requires_grad)
    needed = sum(sizes.values()) + (COPIES[recipe.optim.name] - 1) * trained
    per_image = sum(4 * recipe.data.channels * view.size**2 for view in recipe.views)
    views = 0 if device.type == "cuda" else per_image * recipe.batch_size // dist.world_size()
    available = _available_bytes(device)
    if needed + views <= available:
        return
    name, size = max(sizes.items(), key=lambda item: item[1])
    largest = f"The largest tensor is {name} with {format_bytes(size)}"
    advice = _name_settings(recipe.method, method.state_dict()[name])
    if views > needed:
        largest = f"A batch of {recipe.batch_size} images takes {format_bytes(views)}"
        advice = "batch_size or views.size"
    raise UserError(
        f"These settings need at least {format_bytes(needed + views)} of memory, and "
        f"{format_bytes(available)} are free. {largest}: lower {advice}."
    )


@dataclass(frozen=True, kw_only=True)
class MemoryForecast:
    """Bytes that a training step needs on one process, uncompiled, without cached images."""

    batch_size: int  # images of this process
    weights: int  # with gradients, optimizer, teacher, queue and memory bank
    stored: int  # when the forward pass ends, for the backward pass
    peak: int
    available: int  # on the device
    recomputed: bool  # activation checkpointing or chunks are in use

    def describe(self) -> str:
        """One or two sentences."""
        need = (
            f"A step of {self.batch_size:,} images needs about {format_bytes(self.peak)} of memory "
            f"beside the images themselves: {format_bytes(self.weights)} for weights and "
            f"optimizer, {format_bytes(self.stored)} stored for the backward pass, and the rest "
            f"while it runs. The device has {format_bytes(self.available)}"
        )
        if self.peak <= self.available:
            return f"{need}."
        ways = "" if self.recomputed else "--activation-checkpointing, --chunk N or "
        return f"{need}: that is too little. Use {ways}a smaller --batch-size."


def foresee_memory(recipe: Recipe, num_images: int, device: torch.device) -> MemoryForecast:
    """Run one step on tensors without memory, and count the bytes that are alive at a time."""
    # Imported here: it takes half a second.
    from torch._subclasses.fake_tensor import FakeTensorMode

    meta, cpu = torch.device("meta"), torch.device("cpu")
    with meta:
        method = build_method(recipe, meta, DataInfo(num_images, 2))
    batch_size = recipe.batch_size // dist.world_size()
    with FakeTensorMode(allow_non_fake_inputs=True), LiveBytes() as memory:
        method.to_empty(device=cpu)
        memory.count([*method.parameters(), *method.buffers()])
        trained = sum(count_bytes(p) for p in method.parameters() if p.requires_grad)
        fixed = memory.live + (COPIES[recipe.optim.name] - 1) * trained
        state = fixed - memory.live - trained  # of the optimizer; gradients are counted
        at = Moment(
            step=torch.tensor(0),
            index=torch.arange(batch_size),
            seed=recipe.seed,
            total_steps=1,
            steps_per_epoch=1,
            labels=torch.zeros(batch_size, dtype=torch.int64),
        )
        channels, dtype = recipe.data.channels, DTYPES[recipe.precision]
        sizes = [view.size for view in recipe.views]
        views = [torch.zeros(batch_size, channels, size, size, dtype=dtype) for size in sizes]
        before = memory.live
        with autocast(recipe, cpu):
            step = method(views, at)
        stored = memory.live - before
        step.loss.backward()
        peak = memory.peak + state
    return MemoryForecast(
        batch_size=batch_size,
        weights=fixed,
        stored=stored,
        peak=peak,
        available=_available_bytes(device),
        recomputed=recipe.chunk is not None or recipe.activation_checkpointing,
    )


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the tensors that are alive, and their maximum over time."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.counted: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and count its results."""
        out = func(*args, **(kwargs or {}))
        self.count(x for x in tree_leaves(out) if isinstance(x, Tensor))
        return out

    def count(self, tensors: Iterable[Tensor]) -> None:
        """Count the memory of these tensors until it is freed; tensors may share memory."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage._cdata in self.counted:
                continue
            size = storage.nbytes()
            self.counted.add(storage._cdata)
            self.live += size
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._free, storage._cdata, size)

    def _free(self, address: int, size: int) -> None:
        self.counted.discard(address)
        self.live -= size


def count_bytes(tensor: Tensor) -> int:
    """Bytes of a tensor, also of one without memory (meta)."""
    return tensor.numel() * tensor.element_size()


def _available_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    return free_memory() // processes_per_machine()


def _name_settings(config: Any, tensor: Tensor) -> str:
    """Name the settings of a method that are a side of this tensor."""
    named = [f"method.{f.name}" for f in fields(config) if getattr(config, f.name) in tensor.shape]
    return " or ".join(named) or "backbone.name, or use fewer images"
