"""Code that LARS and LAMB share: steps scaled, tensor by tensor, by a ratio of norms.

All work is done by multi-tensor kernels, and no value is read back from the device, so that a step
can be recorded as a CUDA graph. As in torch's fused optimizers, a tensor `found_inf` set on the
optimizer skips the step where it is 1.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from selfsight.check_settings import BELOW_ONE, NOT_NEGATIVE, POSITIVE, Range, check_setting

RANGES: dict[str, Range] = {
    "lr": Range(0, 1e38),
    "weight_decay": NOT_NEGATIVE,
    "momentum": BELOW_ONE,
    "trust_coefficient": POSITIVE,
    "betas": BELOW_ONE,
    "eps": NOT_NEGATIVE,
}


class GroupTensors(NamedTuple):
    """A parameter group, and those of its parameters that have a gradient."""

    group: dict[str, Any]
    params: list[Tensor]
    grads: list[Tensor]
    found_inf: Tensor | None  # 1: skip this step


def optimizer_defaults(**settings: Any) -> dict[str, Any]:
    """Validate an optimizer's settings; return them as defaults of its parameter groups."""
    for name, value in settings.items():
        if name in RANGES and not isinstance(value, Tensor):  # reading one would wait for a device
            declared = tuple[float, float] if name == "betas" else float
            check_setting(name, value, declared, RANGES[name])
    # torch moves the step counts of a loaded state to the device if `fused` is set.
    return settings | {"fused": True}


def groups_with_grads(optimizer: torch.optim.Optimizer) -> Iterator[GroupTensors]:
    """Yield each parameter group that has gradients."""
    found_inf = getattr(optimizer, "found_inf", None)
    for group in optimizer.param_groups:
        params = [p for p in group["params"] if p.grad is not None]
        if params:
            yield GroupTensors(group, params, [p.grad for p in params], found_inf)


def state_tensors(
    optimizer: torch.optim.Optimizer, name: str, params: list[Tensor]
) -> list[Tensor]:
    """Return the optimizer's state of this name for each parameter, zero at first.

    "step" is a float32 scalar; any other state has the parameter's shape.
    """
    for p in params:
        if name not in optimizer.state[p]:
            scalar = torch.zeros((), dtype=torch.float32, device=p.device)
            optimizer.state[p][name] = scalar if name == "step" else torch.zeros_like(p)
    return [optimizer.state[p][name] for p in params]


def one_where_any_is_zero(
    ratio: Float[Tensor, " n"], *norms: Float[Tensor, " n"]
) -> Float[Tensor, " n"]:
    """Return the ratio, replaced by 1 where one of the norms is 0."""
    return ratio.where(torch.stack([norm > 0 for norm in norms]).all(0), 1.0)


def norms(tensors: list[Tensor]) -> Float[Tensor, " n"]:
    """Return the norm of each tensor, on the device."""
    return torch.stack(torch._foreach_norm(tensors))


def add_weight_decay(
    params: list[Tensor], grads: list[Tensor], weight_decay: float
) -> list[Tensor]:
    """Return grad + weight_decay * param, in the memory layout of the parameters.

    Fused kernels walk through memory and need equal layouts; on the CPU they do not check.
    """
    sums = list(torch._foreach_mul(params, weight_decay))
    torch._foreach_add_(sums, grads)
    return sums


def sgd_step(
    params: list[Tensor],
    updates: list[Tensor],
    lr: float | Tensor,
    found_inf: Tensor | None,
    *,
    buffers: list[Tensor] | None = None,
    momentum: float = 0.0,
) -> None:
    """Apply torch's fused SGD: m = momentum m + update, w -= lr m; without buffers m = update."""
    torch._fused_sgd_(
        params,
        updates,
        buffers or [],
        weight_decay=0.0,
        momentum=momentum,
        lr=lr,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
        found_inf=found_inf,
    )


def trust_ratios(
    group: dict[str, Any], params: list[Tensor], grads: list[Tensor], updates: list[Tensor]
) -> list[Tensor]:
    """Return the trust ratio r of each tensor, as device scalars."""
    weight_norm = norms(params)
    if group["variant"] in ("mocov3", "simclr"):
        update_norm = norms(updates)
        ratio = group["trust_coefficient"] * weight_norm / update_norm
    else:
        grad_norm = norms(grads)
        update_norm = grad_norm + group["weight_decay"] * weight_norm
        ratio = group["trust_coefficient"] * weight_norm / (update_norm + 1e-8)
        if group["variant"] == "clipped":  # a warm-up begins at lr = 0, where the ratio is clipped
            ratio = (ratio / group["lr"]).clamp(max=1.0)
        if group["variant"] in ("larc", "clipped"):
            ratio = ratio.where(grad_norm > 0, 0.0)
    return list(one_where_any_is_zero(ratio, weight_norm, update_norm).unbind())
