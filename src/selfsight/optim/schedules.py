"""Schedules of learning rate and teacher momentum, for Python numbers and device scalars."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from selfsight.check_settings import NOT_NEGATIVE, SHARE, Range, check_settings
from selfsight.errors import UserError

Number = int | float | Float[Tensor, ""]
ScheduleName = Literal["cosine", "step", "constant"]
RANGES: dict[str, Range] = {
    "warmup_epochs": NOT_NEGATIVE,
    "warmup_start": SHARE,
    "end": SHARE,
    "milestones": NOT_NEGATIVE,
    "gamma": NOT_NEGATIVE,
}


def cosine(progress: Number, start: Number, end: Number) -> Number:
    """Half a cosine from start (progress 0) to end (progress 1 and above)."""
    angle = math.pi * clamp_progress(progress)
    cos = torch.cos(angle) if isinstance(angle, Tensor) else math.cos(angle)
    return end + (start - end) * (1 + cos) / 2


def linear(progress: Number, start: Number, end: Number) -> Number:
    """A straight line from start (progress 0) to end (progress 1 and above)."""
    return start + (end - start) * clamp_progress(progress)


def step_decay(epoch: Number, milestones: tuple[int | float, ...], gamma: float) -> Number:
    """Multiply by gamma once per milestone reached."""
    if isinstance(epoch, Tensor):
        return gamma ** sum((epoch >= milestone).to(epoch.dtype) for milestone in milestones)
    return gamma ** sum(epoch >= milestone for milestone in milestones)


def clamp_progress(progress: Number) -> Number:
    """Clamp progress to [0, 1]."""
    return progress.clamp(0, 1) if isinstance(progress, Tensor) else min(max(progress, 0.0), 1.0)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Learning-rate schedule as fractions of the peak; by default half a cosine down to 0.

    MoCo v3, BYOL: 10 warm-up epochs. MoCo v2, SimSiam: `per_epoch`. MoCo v1: "step" at 120, 160,
    `per_epoch`. SiMo: 10 warm-up epochs from 0.001, not `shifted`. Fast-MoCo: one from 0.25.
    """

    name: ScheduleName = "cosine"
    warmup_epochs: int | float = 0
    warmup_start: float = 0.0  # fraction of the peak at step 0
    end: float = 0.0  # fraction of the peak at the end of the cosine
    milestones: tuple[int | float, ...] = ()
    gamma: float = 0.1
    per_epoch: bool = False  # update once per epoch, not every step
    shifted: bool = True  # False: the cosine starts at step 0 and multiplies the warm-up

    def __post_init__(self) -> None:
        check_settings(self, "schedule.", RANGES)
        if self.name == "step" and not self.milestones:
            raise UserError(
                'optim.schedule.name is "step" without milestones, so the learning rate never '
                'falls. Give optim.schedule.milestones, or use "constant".'
            )

    def check(
        self,
        epochs: int | float,
        *,
        warmup: str = "optim.schedule.warmup_epochs",
        length: str = "epochs",
    ) -> None:
        """Raise a UserError, with these names, if the warm-up is as long as the run or longer."""
        if self.warmup_epochs and self.warmup_epochs >= epochs:
            raise UserError(
                f"{warmup} is {self.warmup_epochs:g}, but {length} is {epochs:g}. Lower the "
                f"warm-up (--{warmup.replace('_', '-')} 0) or raise {length}."
            )

    def lr(self, epoch: Number, total_epochs: Number, peak: Number) -> Number:
        """Return the learning rate at a fractional epoch; all lengths may also be in steps."""
        warmup = self.warmup_epochs  # rises within an epoch too: it may be shorter than one
        rise = linear(epoch / warmup, self.warmup_start, 1.0) if warmup else 1.0
        if self.per_epoch:
            epoch = torch.floor(epoch) if isinstance(epoch, Tensor) else math.floor(epoch)
        if self.name == "step":
            return peak * rise * step_decay(epoch, self.milestones, self.gamma)
        if self.name == "constant":
            return peak * rise
        start = warmup if self.shifted else 0.0
        return peak * rise * cosine((epoch - start) / (total_epochs - start), 1.0, self.end)
