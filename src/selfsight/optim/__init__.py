"""Optimizers, parameter groups and schedules."""

from selfsight.optim.lamb import LAMB
from selfsight.optim.lars import LARS
from selfsight.optim.param_groups import (
    OPTIMS,
    Optim,
    build_optimizer,
    clip_gradients,
    describe_groups,
    load_optimizer_state,
    set_lr,
)
from selfsight.optim.schedules import Schedule, cosine

__all__ = [
    "LAMB",
    "LARS",
    "OPTIMS",
    "Optim",
    "Schedule",
    "build_optimizer",
    "clip_gradients",
    "cosine",
    "describe_groups",
    "load_optimizer_state",
    "set_lr",
]
