"""LARS (You, Gitman, Ginsburg 2017, arXiv:1708.03888) in the flavours of published code.

They are not interchangeable. With weights w, gradient g, decay d, trust t and g' = g + d w:

- mocov3 (BYOL, Barlow Twins, VICReg): r = t |w| / |g'|;  m = beta m + r g';  w -= lr m
- simclr: the same r, but the rate is inside the buffer:  m = beta m + lr r g';  w -= m
- larc (apex LARC around SGD, clip=False: SimSiam's linear evaluation, SwAV):
  r = t |w| / (|g| + d |w| + 1e-8);  m = beta m + r g';  w -= lr m;  no decay where g = 0
- fastmoco (its linear evaluation): the same r, outside the buffer:  m = beta m + g';  w -= lr r m

r = 1 where a norm is 0, and in groups with `adapt=False`.
"""

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor

Flavour = Literal["mocov3", "simclr", "larc", "fastmoco"]


class LARS(torch.optim.Optimizer):
    """SGD whose steps are scaled, tensor by tensor, to the length of the weights.

    Every default can be set for each parameter group.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
        flavour: Flavour = "mocov3",
        adapt: bool = True,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust": trust,
            "flavour": flavour,
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
        flavour, lr = group["flavour"], group["lr"]
        grads = [p.grad for p in params if p.grad is not None]
        decayed = torch._foreach_add(grads, params, alpha=group["weight_decay"])
        ratios = trust_ratios(group, params, grads, decayed) if group["adapt"] else None
        for p in params:
            if not self.state[p]:
                self.state[p]["momentum_buffer"] = torch.zeros_like(p)
        buffers = [self.state[p]["momentum_buffer"] for p in params]

        if ratios is not None and flavour != "fastmoco":
            torch._foreach_mul_(decayed, ratios)
        if flavour == "simclr":
            torch._foreach_mul_(decayed, lr)
        torch._foreach_mul_(buffers, group["momentum"])
        torch._foreach_add_(buffers, decayed)
        update = torch._foreach_mul(buffers, 1.0 if flavour == "simclr" else lr)
        if ratios is not None and flavour == "fastmoco":
            torch._foreach_mul_(update, ratios)
        torch._foreach_sub_(params, update)


def trust_ratios(
    group: dict[str, Any],
    params: list[Tensor],
    grads: list[Tensor],
    decayed: tuple[Tensor, ...],
) -> list[Tensor]:
    """How much of its gradient each tensor may follow, as device scalars."""
    weight = torch.stack(torch._foreach_norm(params))
    if group["flavour"] in ("mocov3", "simclr"):
        length = torch.stack(torch._foreach_norm(decayed))
        ratio = group["trust"] * weight / length
    else:
        grad = torch.stack(torch._foreach_norm(grads))
        length = grad + group["weight_decay"] * weight
        ratio = group["trust"] * weight / (length + 1e-8)
        if group["flavour"] == "larc":
            ratio = ratio.where(grad > 0, 0.0)
    return list(ratio.where((weight > 0) & (length > 0), 1.0).unbind())
