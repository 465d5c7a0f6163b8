"""Clip gradients by their joint norm; compute the norm of each layer's gradient."""

import re
from collections.abc import Iterable

import torch
from torch import Tensor, nn


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
