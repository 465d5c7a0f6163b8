"""Optimizers, parameter groups and schedules."""

from selfsight.optim.lamb import LAMB
from selfsight.optim.lars import LARS
from selfsight.optim.param_groups import (
    OPTIMS,
    Optim,
    build,
    clip_gradients,
    load_state,
    set_lr,
    table,
)
from selfsight.optim.schedules import Schedule, cosine

__all__ = [
    "LAMB",
    "LARS",
    "OPTIMS",
    "Optim",
    "Schedule",
    "build",
    "clip_gradients",
    "cosine",
    "load_state",
    "set_lr",
    "table",
]
