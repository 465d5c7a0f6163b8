"""Optimizers, parameter groups and schedules."""

from selfsight.optim.build import build_optimizer, load_optimizer_state, set_lr
from selfsight.optim.gradient_clipping_and_norms import clip_gradients, gradient_norms
from selfsight.optim.lamb import LAMB
from selfsight.optim.lars import LARS
from selfsight.optim.optim_settings import OPTIMS, Optim
from selfsight.optim.param_groups import describe_groups, param_groups
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
    "gradient_norms",
    "load_optimizer_state",
    "param_groups",
    "set_lr",
]
