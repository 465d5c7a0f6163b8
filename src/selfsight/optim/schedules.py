"""Schedules as functions of progress, of Python numbers and of device scalars alike."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from selfsight.errors import UserError, nearest

Number = int | float | Float[Tensor, ""]
ScheduleName = Literal["cosine", "step", "constant"]


def cosine(progress: Number, start: Number, end: Number) -> Number:
    """Half a cosine from start (progress 0) to end (progress 1 and beyond)."""
    angle = math.pi * within_run(progress)
    turn = torch.cos(angle) if isinstance(angle, Tensor) else math.cos(angle)
    return end + (start - end) * (1 + turn) / 2


def linear(progress: Number, start: Number, end: Number) -> Number:
    """A straight line from start (progress 0) to end (progress 1 and beyond)."""
    return start + (end - start) * within_run(progress)


def steps(epoch: Number, milestones: tuple[int | float, ...], gamma: float) -> Number:
    """A factor of gamma for each milestone that is reached."""
    if isinstance(epoch, Tensor):
        return gamma ** sum((epoch >= milestone).to(epoch.dtype) for milestone in milestones)
    return gamma ** sum(epoch >= milestone for milestone in milestones)


def within_run(progress: Number) -> Number:
    """Progress held between 0 and 1."""
    return progress.clamp(0, 1) if isinstance(progress, Tensor) else min(max(progress, 0.0), 1.0)


def check_choice(setting: str, value: str, known: tuple[str, ...]) -> None:
    """Refuse a word that is none of those known."""
    if value not in known:
        raise UserError(
            f'{setting} is "{value}", which is not one of {", ".join(known)}.'
            f"{nearest(value, known)}"
        )


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How the learning rate goes, in shares of its peak; the default falls to 0 by half a cosine.

    MoCo v3, BYOL: 10 warm-up epochs. MoCo v2, SimSiam: `per_epoch`. MoCo v1: "step" at 120, 160,
    `per_epoch`. SiMo: 10 warm-up epochs from 0.001, not `shifted`. Fast-MoCo: one from 0.25.
    """

    name: ScheduleName = "cosine"
    warmup_epochs: int | float = 0
    warmup_start: float = 0.0  # share of the peak at step 0
    end: float = 0.0  # share of the peak where the cosine ends
    milestones: tuple[int | float, ...] = ()
    gamma: float = 0.1
    per_epoch: bool = False  # the rate changes once an epoch, not every step
    shifted: bool = True  # False: the cosine starts with the run, beneath the warm-up

    def __post_init__(self) -> None:
        check_choice("schedule.name", self.name, get_args(ScheduleName))
        if self.warmup_epochs < 0:
            raise UserError(
                f"schedule.warmup_epochs is {self.warmup_epochs}; it counts epochs. Use 0 for none."
            )
        if not (0 <= self.warmup_start <= 1 and 0 <= self.end <= 1):
            raise UserError(
                f"schedule.warmup_start is {self.warmup_start} and schedule.end is {self.end}. "
                "Both are shares of the peak rate: give numbers from 0 to 1."
            )
        if self.name == "step" and not self.milestones:
            raise UserError(
                'schedule.name is "step" without milestones, so the rate would never fall. '
                'Give schedule.milestones, or use "constant".'
            )

    def check(self, epochs: int | float) -> None:
        """Refuse a warm-up that the run would not outlast."""
        if self.warmup_epochs and self.warmup_epochs >= epochs:
            raise UserError(
                f"schedule.warmup_epochs is {self.warmup_epochs:g} but the run has only {epochs:g} "
                "epochs. Lower the warm-up or raise epochs."
            )

    def lr(self, epoch: Number, total_epochs: Number, peak: Number) -> Number:
        """The rate at a fractional epoch; in steps as well, if all three lengths are in steps."""
        if self.per_epoch:
            epoch = torch.floor(epoch) if isinstance(epoch, Tensor) else math.floor(epoch)
        warmup = self.warmup_epochs
        rise = linear(epoch / warmup, self.warmup_start, 1.0) if warmup else 1.0
        if self.name == "step":
            return peak * rise * steps(epoch, self.milestones, self.gamma)
        if self.name == "constant":
            return peak * rise
        skipped = warmup if self.shifted else 0.0
        return peak * rise * cosine((epoch - skipped) / (total_epochs - skipped), 1.0, self.end)
