"""LAMB (You et al. 2019, arXiv:1904.00962), algorithm 2, with Adam's bias correction."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from selfsight.optim.trust_ratio import decayed, kept, lengths, parts, ratio_or_one, settings


class LAMB(torch.optim.Optimizer):
    """Adam whose steps are scaled, tensor by tensor, to the length of the weights.

    u = m / (sqrt(v) + eps) + decay w;  w -= lr |w| / |u| u, where the ratio of lengths is 1 if
    either is 0, and in groups with `adapt=False`.
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
        defaults = settings(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, adapt=adapt)
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Algorithm 2 for all groups; nothing waits for the device."""
        for group, params, grads, lost in parts(self):
            count = kept(self, "step", params)
            moments = kept(self, "exp_avg", params), kept(self, "exp_avg_sq", params)
            if lost is None:
                torch._foreach_add_(count, 1.0)
            else:
                torch._foreach_add_(count, [1.0 - lost] * len(count))

            # Adam's fused kernel at the rate -1 turns zeros into the direction that Adam would go.
            update = list(torch._foreach_mul(params, 0.0))
            torch._fused_adam_(
                update,
                decayed(params, grads, 0.0),
                *moments,
                [],
                count,
                lr=-1.0,
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                weight_decay=0.0,
                eps=group["eps"],
                amsgrad=False,
                maximize=False,
                found_inf=lost,
            )
            torch._foreach_add_(update, params, alpha=group["weight_decay"])
            if group["adapt"]:
                weight, length = lengths(params), lengths(update)
                torch._foreach_mul_(
                    update, list(ratio_or_one(weight / length, weight, length).unbind())
                )
            # A lost step leaves `update` finite, for Adam's kernel then adds nothing to its zeros.
            rate = group["lr"] if lost is None else group["lr"] * (1.0 - lost).to(params[0].dtype)
            torch._foreach_mul_(update, rate)
            torch._foreach_sub_(params, update)
