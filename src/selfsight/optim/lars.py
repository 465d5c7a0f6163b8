"""LARS (You, Gitman, Ginsburg 2017, arXiv:1708.03888) in the flavors of published code.

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

from selfsight.optim.trust_ratio import (
    decayed,
    descend,
    kept,
    lengths,
    parts,
    ratio_or_one,
    settings,
)

LARSVariant = Literal["mocov3", "simclr", "larc", "fastmoco"]


class LARS(torch.optim.Optimizer):
    """SGD whose steps are scaled, tensor by tensor, to the length of the weights."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 0.001,
        variant: LARSVariant = "mocov3",
        adapt: bool = True,
    ) -> None:
        defaults = settings(
            lr=lr,
            momentum=momentum,
            weight_decay=weight_decay,
            trust_coefficient=trust_coefficient,
            variant=variant,
            adapt=adapt,
        )
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of all groups, each in its variant; nothing waits for the device."""
        for group, params, grads, lost in parts(self):
            variant, lr = group["variant"], group["lr"]
            steps = decayed(params, grads, group["weight_decay"])
            ratios = trust_ratios(group, params, grads, steps) if group["adapt"] else None
            memory = {
                "buffers": kept(self, "momentum_buffer", params),
                "momentum": group["momentum"],
            }
            if ratios is not None and variant == "fastmoco":
                descend(params, steps, 0.0, lost, **memory)  # moves the buffers alone
                descend(params, list(torch._foreach_mul(memory["buffers"], ratios)), lr, lost)
                continue
            if ratios is not None:
                torch._foreach_mul_(steps, ratios)
            if variant == "simclr":
                torch._foreach_mul_(steps, lr)
            descend(params, steps, 1.0 if variant == "simclr" else lr, lost, **memory)


def trust_ratios(
    group: dict[str, Any], params: list[Tensor], grads: list[Tensor], steps: list[Tensor]
) -> list[Tensor]:
    """How much of its decayed gradient each tensor may follow, as device scalars."""
    weight = lengths(params)
    if group["variant"] in ("mocov3", "simclr"):
        length = lengths(steps)
        ratio = group["trust_coefficient"] * weight / length
    else:
        grad = lengths(grads)
        length = grad + group["weight_decay"] * weight
        ratio = group["trust_coefficient"] * weight / (length + 1e-8)
        if group["variant"] == "larc":
            ratio = ratio.where(grad > 0, 0.0)
    return list(ratio_or_one(ratio, weight, length).unbind())
