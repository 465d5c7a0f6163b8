"""LAMB (You et al. 2019, arXiv:1904.00962), algorithm 2, with Adam's bias correction."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from selfsight.optim.trust_ratio import (
    add_weight_decay,
    groups_with_grads,
    norms,
    one_where_any_is_zero,
    optimizer_defaults,
    state_tensors,
)


class LAMB(torch.optim.Optimizer):
    """Adam whose steps are scaled, tensor by tensor, to the norm of the weights.

    u = m / (sqrt(v) + eps) + weight_decay w;  w -= lr |w| / |u| u. The ratio of norms is 1 if
    either is 0, and in groups with `adapt=False` (see `param_groups`).
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        adapt: bool = True,
    ) -> None:
        defaults = optimizer_defaults(
            lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, adapt=adapt
        )
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Apply algorithm 2 to all groups, without waiting for the device."""
        for group, params, grads, found_inf in groups_with_grads(self):
            steps = state_tensors(self, "step", params)
            exp_avg = state_tensors(self, "exp_avg", params)
            exp_avg_sq = state_tensors(self, "exp_avg_sq", params)
            if found_inf is None:
                torch._foreach_add_(steps, 1.0)
            else:
                torch._foreach_add_(steps, [1.0 - found_inf] * len(steps))

            # With lr = -1, Adam's fused kernel turns zeros into Adam's update.
            update = list(torch._foreach_mul(params, 0.0))
            torch._fused_adam_(
                update,
                add_weight_decay(params, grads, 0.0),
                exp_avg,
                exp_avg_sq,
                [],
                steps,
                lr=-1.0,
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                weight_decay=0.0,
                eps=group["eps"],
                amsgrad=False,
                maximize=False,
                found_inf=found_inf,
            )
            torch._foreach_add_(update, params, alpha=group["weight_decay"])
            if group["adapt"]:
                weight_norm, update_norm = norms(params), norms(update)
                ratio = one_where_any_is_zero(weight_norm / update_norm, weight_norm, update_norm)
                torch._foreach_mul_(update, list(ratio.unbind()))
            # In a skipped step Adam's kernel leaves the zeros of `update`, so that it is finite.
            lr = group["lr"]
            if found_inf is not None:
                lr = lr * (1.0 - found_inf).to(params[0].dtype)
            torch._foreach_mul_(update, lr)
            torch._foreach_sub_(params, update)
