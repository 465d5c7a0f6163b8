"""Optimisers, parameter groups and schedules."""

from sightline.optim.groups import OPTIMS, Optim, build, clip_gradients, load_state, set_lr, table
from sightline.optim.lamb import LAMB
from sightline.optim.lars import LARS
from sightline.optim.schedules import Schedule, cosine

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
