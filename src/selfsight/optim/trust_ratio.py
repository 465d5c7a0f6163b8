"""What LARS and LAMB share: rates fitted, tensor by tensor, to the length of the weights.

Everything is a multi-tensor kernel, but for one product with each tensor's own ratio, and nothing
is read back, so that a step can be recorded as a CUDA graph. As in torch's fused optimizers, a
tensor `found_inf` set on the optimizer leaves the step out where it is 1.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class Part(NamedTuple):
    """The tensors of a parameter group that have a gradient; a `lost` step (1) moves nothing."""

    group: dict[str, Any]
    params: list[Tensor]
    grads: list[Tensor]
    lost: Tensor | None


def settings(**defaults: Any) -> dict[str, Any]:
    """An optimizer's defaults; each can be set for each parameter group."""
    # Told that it is fused, torch puts counts of steps on the device when it loads a state.
    return defaults | {"fused": True}


def parts(optimizer: torch.optim.Optimizer) -> Iterator[Part]:
    """What one step has to move, group by group."""
    lost = getattr(optimizer, "found_inf", None)
    for group in optimizer.param_groups:
        params = [p for p in group["params"] if p.grad is not None]
        if params:
            yield Part(group, params, [p.grad for p in params], lost)


def kept(optimizer: torch.optim.Optimizer, name: str, params: list[Tensor]) -> list[Tensor]:
    """A tensor of the optimizer's own for each parameter, zero at first; "step" is a scalar."""
    for p in params:
        if name not in optimizer.state[p]:
            scalar = torch.zeros((), dtype=torch.float32, device=p.device)
            optimizer.state[p][name] = scalar if name == "step" else torch.zeros_like(p)
    return [optimizer.state[p][name] for p in params]


def ratio_or_one(ratio: Float[Tensor, " n"], *lengths: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """The ratio, or 1 where one of the lengths is 0."""
    return ratio.where(torch.stack([length > 0 for length in lengths]).all(0), 1.0)


def lengths(tensors: list[Tensor]) -> Float[Tensor, " n"]:
    """The norm of each tensor, on the device."""
    return torch.stack(torch._foreach_norm(tensors))


def decayed(params: list[Tensor], grads: list[Tensor], weight_decay: float) -> list[Tensor]:
    """Gradients with the decay of the weights added, in the weights' own memory layout.

    Fused kernels walk through memory and need that: on the CPU they do not even look.
    """
    sums = list(torch._foreach_mul(params, weight_decay))
    torch._foreach_add_(sums, grads)
    return sums


def descend(
    params: list[Tensor],
    steps: list[Tensor],
    lr: float | Tensor,
    lost: Tensor | None,
    *,
    buffers: list[Tensor] | None = None,
    momentum: float = 0.0,
) -> None:
    """SGD by torch's fused kernel: m = momentum m + step, w -= lr m; w -= lr step without m."""
    torch._fused_sgd_(
        params,
        steps,
        buffers or [],
        weight_decay=0.0,
        momentum=momentum,
        lr=lr,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
        found_inf=lost,
    )
