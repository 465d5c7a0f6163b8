"""LARS (You, Gitman, Ginsburg 2017, arXiv:1708.03888) in the variants of published code.

They are not interchangeable. With weights w, gradient g, weight decay d, trust coefficient t and
g' = g + d w:

- mocov3 (BYOL, Barlow Twins, VICReg): r = t |w| / |g'|;  m = beta m + r g';  w -= lr m
- simclr: the same r, but the learning rate is inside the buffer:  m = beta m + lr r g';  w -= m
- larc (apex LARC around SGD, clip=False: SimSiam's linear evaluation, SwAV):
  r = t |w| / (|g| + d |w| + 1e-8);  m = beta m + r g';  w -= lr m;  no weight decay where g = 0
- clipped (solo-learn and eb_jepa on CIFAR-10): the same with r = min(r / lr, 1), so that a
  step is at most SGD's, and does not depend on lr where it is less
- fastmoco (its linear evaluation): larc's r, outside the buffer:  m = beta m + g';  w -= lr r m

r = 1 where a norm is 0, and in groups with `adapt=False` (see `param_groups`).
"""

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor

from selfsight.check_settings import check_setting
from selfsight.optim.trust_ratio import (
    add_weight_decay,
    groups_with_grads,
    optimizer_defaults,
    sgd_step,
    state_tensors,
    trust_ratios,
)
from selfsight.rng import use_triton

LARSVariant = Literal["mocov3", "simclr", "larc", "clipped", "fastmoco"]


class LARS(torch.optim.Optimizer):
    """SGD whose steps are scaled, tensor by tensor, to the norm of the weights.

    Pass `param_groups(module)` to exclude biases and norms from the scaling and weight decay.
    """

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
        check_setting("variant", variant, LARSVariant)
        defaults = optimizer_defaults(
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
        """Update all groups, each in its variant, without waiting for the device."""
        for group, params, grads, found_inf in groups_with_grads(self):
            buffers = state_tensors(self, "momentum_buffer", params)
            if use_triton(params[0]):
                from selfsight.triton_kernels.lars_kernels import launch_lars
                from selfsight.triton_kernels.tensor_lists import have_equal_layouts

                if have_equal_layouts(params, buffers):
                    launch_lars(group, params, grads, buffers, found_inf)
                    continue
            step_with_torch(group, params, grads, buffers, found_inf)


def step_with_torch(
    group: dict[str, Any],
    params: list[Tensor],
    grads: list[Tensor],
    buffers: list[Tensor],
    found_inf: Tensor | None,
) -> None:
    """Update one group by torch's multi-tensor kernels, in 14 passes over memory.

    On a GPU `triton_kernels.lars_kernels` does it in seven.
    """
    variant, lr = group["variant"], group["lr"]
    updates = add_weight_decay(params, grads, group["weight_decay"])
    ratios = trust_ratios(group, params, grads, updates) if group["adapt"] else None
    memory: dict[str, Any] = {"buffers": buffers, "momentum": group["momentum"]}
    if not group["momentum"]:  # torch's kernel takes no buffers then
        memory, buffers = {}, updates
    if ratios is not None and variant == "fastmoco":
        sgd_step(params, updates, 0.0, found_inf, **memory)  # updates only the buffers
        sgd_step(params, list(torch._foreach_mul(buffers, ratios)), lr, found_inf)
        return
    if ratios is not None:
        torch._foreach_mul_(updates, ratios)
    if variant == "simclr":
        torch._foreach_mul_(updates, lr)
    sgd_step(params, updates, 1.0 if variant == "simclr" else lr, found_inf, **memory)
