"""Parameter groups, and which parameters are excluded from LARS and LAMB."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from selfsight.errors import UserError


def is_excluded_from_adaptation(parameter: Tensor) -> bool:
    """Return whether LARS and LAMB exclude a parameter: true for biases and norms.

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
    constant_predictor: bool = False,
) -> list[dict[str, Any]]:
    """Split trainable parameters into groups for an optimizer, e.g. `LARS(param_groups(net), lr)`.

    Args:
        module: A module, or pairs of names and parameters.
        exclude_1d: Give biases and norms a group with `weight_decay=0` and `adapt=False`.
        split_1d: Give biases and norms a group even if they are not excluded.
        split_backbone: Give the student's backbone groups of its own.
        constant_predictor: Exempt parameters named "predictor." from the schedule.

    The predictor has its own groups. Settings that a group does not state come from the optimizer.
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
            "is_1d": is_1d,
            "schedule": "constant" if in_predictor and constant_predictor else "main",
        }
        if is_1d and exclude_1d:
            group |= {"weight_decay": 0.0, "adapt": False}
        groups.append(group)
    return groups


def describe_groups(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return one row per parameter group, to be printed at the start of a run.

    `adapt` (LARS, LAMB) and `schedule` are columns only if a group differs from the default in it.
    """
    groups, defaults = optimizer.param_groups, {"adapt": False, "schedule": "main"}
    shown = [key for key, value in defaults.items() if any(g[key] != value for g in groups)]
    return [
        {
            "label": group["label"],
            "parameters": sum(p.numel() for p in group["params"]),
            "lr": float(group["lr"]),
            "weight_decay": group["weight_decay"],
        }
        | {key: group[key] for key in shown}
        for group in groups
    ]
