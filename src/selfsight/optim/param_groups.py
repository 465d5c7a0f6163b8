"""Parameter groups, and the clipping and the norms of gradients."""

import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from selfsight.errors import UserError


def is_excluded_from_adaptation(parameter: Tensor) -> bool:
    """Return whether LARS and LAMB leave a parameter alone: true for biases and norms.

    The papers' code applies neither the trust ratio nor weight decay to them, and recognizes them
    by having at most one dimension.
    """
    return parameter.ndim <= 1


def param_groups(
    module: nn.Module | Iterable[tuple[str, nn.Parameter]],
    *,
    exclude_1d: bool = True,
    split_1d: bool = False,
    split_backbone: bool = False,
) -> list[dict[str, Any]]:
    """Split trainable parameters into groups for an optimizer, e.g. `LARS(param_groups(net), lr)`.

    Args:
        module: A module, or pairs of names and parameters.
        exclude_1d: Give biases and norms a group with `weight_decay=0` and `adapt=False`.
        split_1d: Give biases and norms a group even if they are not excluded.
        split_backbone: Give the student's backbone groups of its own.

    Parameters named "predictor." have separate groups, so that their learning rate can be
    constant. Settings that a group does not state are those given to the optimizer.
    """
    named = module.named_parameters() if isinstance(module, nn.Module) else module
    split_1d = split_1d or exclude_1d
    parameters: dict[tuple[bool, bool, bool], list[nn.Parameter]] = {}
    for name, parameter in named:
        if parameter.requires_grad:
            in_predictor = name.startswith("predictor.")
            is_1d = split_1d and is_excluded_from_adaptation(parameter)
            in_backbone = split_backbone and name.startswith("student.backbone.")
            parameters.setdefault((in_backbone, in_predictor, is_1d), []).append(parameter)
    if not parameters:
        raise UserError("There is nothing to train: no parameter requires a gradient.")

    groups = []
    for key in sorted(parameters):
        in_backbone, in_predictor, is_1d = key
        rest = "heads" if split_backbone else "network"
        label = "predictor" if in_predictor else "backbone" if in_backbone else rest
        if split_1d:
            label += " biases and norms" if is_1d else " weights"
        group: dict[str, Any] = {
            "params": parameters[key],
            "label": label,
            "in_backbone": in_backbone,
            "in_predictor": in_predictor,
            "is_1d": is_1d,
        }
        if is_1d and exclude_1d:
            group |= {"weight_decay": 0.0, "adapt": False}
        groups.append(group)
    return groups


def clip_gradients(optimizer: torch.optim.Optimizer, max_norm: float | None) -> Tensor | None:
    """Scale all gradients so that their joint norm is at most `max_norm`; None does nothing.

    Returns the norm before clipping, on the device.
    """
    if max_norm is None:
        return None
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return nn.utils.clip_grad_norm_(parameters, max_norm)


def gradient_norms(named_parameters: Iterable[tuple[str, nn.Parameter]]) -> dict[str, Tensor]:
    """Return the norm of each layer's gradient, on the device; the host reads nothing.

    A layer is the first part of a name below backbone, projector or predictor, with its number if
    it has one: `patch_embed`, `blocks.3`, `layer1.0`, `projector.0`.
    """
    layers: dict[str, list[Tensor]] = {}
    for name, parameter in named_parameters:
        if parameter.grad is not None:
            layers.setdefault(layer_name(name), []).append(parameter.grad)
    norms = iter(torch._foreach_norm([grad for grads in layers.values() for grad in grads]))
    return {
        layer: torch.linalg.vector_norm(torch.stack([next(norms) for _ in grads]))
        for layer, grads in layers.items()
    }


def layer_name(parameter: str) -> str:
    """Return the layer that a parameter belongs to, by its name."""
    short = re.sub(r"^(student\.)?(backbone\.)?", "", parameter)
    match = re.match(r"[^.]+(\.\d+)?", short)
    return match[0] if match else short


def describe_groups(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return one row per parameter group, to be printed at the start of a run."""
    return [
        {
            "label": group["label"],
            "tensors": len(group["params"]),
            "parameters": sum(p.numel() for p in group["params"]),
            "lr": float(group["lr"]),
            "weight_decay": group["weight_decay"],
            "adapt": group["adapt"],
            "schedule": group["schedule"],
        }
        for group in optimizer.param_groups
    ]
