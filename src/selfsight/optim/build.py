"""Build an optimizer from its settings, set its learning rates, load its state."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from selfsight.optim.lamb import LAMB
from selfsight.optim.lars import LARS
from selfsight.optim.lr_scaling import scaled_lr
from selfsight.optim.optim_settings import Optim
from selfsight.optim.param_groups import param_groups


def build_optimizer(
    config: Optim,
    named_parameters: Iterable[tuple[str, nn.Parameter]],
    *,
    batch_size: int,
    fused: bool | None = None,
    backbone_lr: float = 1.0,
) -> torch.optim.Optimizer:
    """Build the optimizer with the groups of `param_groups`.

    With `fused`, it uses torch's fused kernels and keeps learning rates in tensors on the device,
    so that a step recorded as a CUDA graph can be replayed at another learning rate. None: fused if
    the parameters are on a GPU. `backbone_lr` is a factor on the backbone's learning rate.
    """
    groups = param_groups(
        named_parameters,
        exclude_1d=config.exclude_1d,
        split_1d=config.lr_1d is not None,
        split_backbone=backbone_lr != 1,
        constant_predictor=config.predictor_lr == "constant",
    )
    device = groups[0]["params"][0].device
    fused = device.type == "cuda" if fused is None else fused
    for group in groups:
        base_lr = config.lr_1d if group["is_1d"] and config.lr_1d is not None else config.lr
        base_lr *= backbone_lr if group["in_backbone"] else 1.0
        lr = scaled_lr(base_lr, config.scale, batch_size)
        group["base_lr"] = base_lr
        group["lr"] = torch.tensor(lr, device=device) if fused else lr
        group.setdefault("weight_decay", config.weight_decay)
        group.setdefault("adapt", config.name in ("lars", "lamb"))

    if config.name == "sgd":
        sgd = torch.optim.SGD(
            groups,
            lr=config.lr,
            momentum=config.momentum,
            nesterov=config.nesterov,
            fused=fused or None,
        )
        if fused and config.momentum > 0:
            # torch would leave uninitialized buffers if the first step were skipped.
            for parameter in (p for group in sgd.param_groups for p in group["params"]):
                sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return sgd
    if config.name == "adamw":
        return torch.optim.AdamW(
            groups,
            lr=config.lr,
            betas=config.betas,
            fused=fused or None,
            capturable=fused and device.type == "cuda",
        )
    if config.name == "lamb":
        return LAMB(groups, lr=config.lr, betas=config.betas)
    return LARS(
        groups,
        lr=config.lr,
        momentum=config.momentum,
        trust_coefficient=config.trust_coefficient,
        variant=config.variant,
    )


def set_lr(
    optimizer: torch.optim.Optimizer,
    config: Optim,
    *,
    step: int,
    steps_per_epoch: int,
    epochs: int | float,
    batch_size: int,
) -> None:
    """Set each group's learning rate for this step; steps count from 0."""
    for group in optimizer.param_groups:
        lr = scaled_lr(group["base_lr"], config.scale, batch_size)
        if group["schedule"] == "main":
            lr = float(config.schedule.lr(step / steps_per_epoch, epochs, lr))
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


def load_optimizer_state(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Load a state that was saved on any device, with or without fused kernels.

    The optimizer's choice of kernels and its learning-rate tensors stay, with the saved values.
    """
    current = [
        {name: group[name] for name in ("lr", "fused", "foreach", "capturable") if name in group}
        for group in optimizer.param_groups
    ]
    saved_lrs = [float(group["lr"]) for group in saved["param_groups"]]
    groups = [
        group | kernels for group, kernels in zip(saved["param_groups"], current, strict=True)
    ]
    optimizer.load_state_dict({**saved, "param_groups": groups})
    for group, kernels, lr in zip(optimizer.param_groups, current, saved_lrs, strict=True):
        group["lr"] = kernels["lr"].fill_(lr) if isinstance(kernels["lr"], Tensor) else lr
