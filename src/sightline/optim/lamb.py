"""LAMB (You et al. 2019, arXiv:1904.00962), algorithm 2, with Adam's bias correction."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


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
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "adapt": adapt,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of all groups; nothing waits for the device."""
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if params:
                self._update(group, params)

    def _update(self, group: dict[str, Any], params: list[Tensor]) -> None:
        beta1, beta2 = group["betas"]
        for p in params:
            if not self.state[p]:
                # The count stays on the CPU, as in torch's Adam: reading it stops no device.
                self.state[p]["step"] = torch.zeros((), dtype=torch.float32)
                self.state[p]["exp_avg"] = torch.zeros_like(p)
                self.state[p]["exp_avg_sq"] = torch.zeros_like(p)
            self.state[p]["step"] += 1
        grads = [p.grad for p in params if p.grad is not None]
        first = [self.state[p]["exp_avg"] for p in params]
        second = [self.state[p]["exp_avg_sq"] for p in params]
        count = [float(self.state[p]["step"]) for p in params]

        torch._foreach_lerp_(first, grads, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, grads, grads, 1 - beta2)
        scale = torch._foreach_div(second, [1 - beta2**n for n in count])
        torch._foreach_sqrt_(scale)
        torch._foreach_add_(scale, group["eps"])
        update = torch._foreach_div(first, [1 - beta1**n for n in count])
        torch._foreach_div_(update, scale)
        torch._foreach_add_(update, params, alpha=group["weight_decay"])
        if group["adapt"]:
            weight = torch.stack(torch._foreach_norm(params))
            length = torch.stack(torch._foreach_norm(update))
            ratio = (weight / length).where((weight > 0) & (length > 0), 1.0)
            torch._foreach_mul_(update, list(ratio.unbind()))
        torch._foreach_mul_(update, group["lr"])
        torch._foreach_sub_(params, update)
