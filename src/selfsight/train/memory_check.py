"""Refuse, before images are decoded, settings whose tensors alone exceed the memory."""

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from selfsight import dist
from selfsight.data.cgroup_limits import free_memory, processes_per_machine
from selfsight.errors import UserError
from selfsight.methods import DataInfo
from selfsight.recipe import Recipe

COPIES = {"sgd": 3, "lars": 3, "adamw": 4, "lamb": 4}  # weights, gradients, optimizer state


def check_memory(recipe: Recipe, num_images: int, device: torch.device) -> None:
    """Raise a UserError if weights, optimizer, queue, memory bank and views cannot fit.

    What the layers keep for the backward pass is not counted: on a GPU a trial finds out, and an
    automatic batch size is lowered.
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


def count_bytes(tensor: Tensor) -> int:
    """Bytes of a tensor, also of one that has none yet (meta)."""
    return tensor.numel() * tensor.element_size()


def _available_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    return free_memory() // processes_per_machine()


def _name_settings(config: Any, tensor: Tensor) -> str:
    """Name the settings of a method that are a side of this tensor."""
    named = [f"method.{f.name}" for f in fields(config) if getattr(config, f.name) in tensor.shape]
    return " or ".join(named) or "backbone.name, or use fewer images"


def format_bytes(count: int) -> str:
    """Format in GiB, or in MiB below one."""
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 else f"{count / 2**20:,.1f} MiB"
