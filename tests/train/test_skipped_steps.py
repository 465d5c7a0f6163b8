"""When skipped steps and numbers that are not finite end a run."""

import math

import pytest
import torch

from selfsight.errors import DivergedError
from selfsight.train.grad_scaler import GradScaler
from selfsight.train.skipped_steps import check_divergence

FINITE, LOST = {"step": 40, "loss": 1.0}, {"step": 40, "loss": math.nan}


def scaler_after(gradients, *, fp16: bool = False) -> GradScaler:
    """The scaler after steps with these gradients."""
    scaler = GradScaler(torch.device("cpu"), enabled=fp16)
    for step, gradient in enumerate(gradients):
        scaler.unscale([torch.tensor([gradient])], torch.tensor(step))
    return scaler


@pytest.mark.parametrize(("fp16", "most"), [(False, 10), (True, 30)])
def test_ten_skipped_steps_in_a_row_are_divergence_and_in_fp16_thirty(fp16, most):
    fewer = scaler_after([1.0] + [math.nan] * (most - 1), fp16=fp16)
    assert check_divergence(FINITE, fewer, finished=False)
    enough = scaler_after([1.0] + [math.nan] * most, fp16=fp16)
    with pytest.raises(DivergedError, match=f"By step 40 {most} steps in a row had no finite"):
        check_divergence(FINITE, enough, finished=False)
    parted = scaler_after(([math.nan] * (most - 1) + [1.0]) * 2, fp16=fp16)
    assert check_divergence(FINITE, parted, finished=False)


def test_a_loss_that_is_not_finite_is_divergence_unless_its_step_was_skipped_and_others_follow():
    skipped, taken = scaler_after([1.0, math.nan]), scaler_after([1.0, 1.0])
    assert not check_divergence(LOST, skipped, finished=False)
    for scaler, finished in ((skipped, True), (taken, False)):
        with pytest.raises(DivergedError, match="these are no longer finite: loss"):
            check_divergence(LOST, scaler, finished=finished)
