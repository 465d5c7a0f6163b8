"""Checkpoints hold weights of steps that were taken, and the last two are known."""

import math
from dataclasses import replace

import pytest
import torch

from selfsight.errors import DivergedError
from selfsight.methods import Step
from selfsight.recipes import RECIPES
from selfsight.run_files.run_folder import Run
from selfsight.train import checkpoint
from selfsight.train.checkpoint_schedule import Saver
from selfsight.train.grad_scaler import GradScaler
from selfsight.train.training_state import State
from tests.methods.small import make


@pytest.fixture
def saver(tmp_path):
    """A saver for every second epoch of two steps."""
    run = Run(tmp_path)
    run.recipe_path.write_text("{}")
    return Saver(run, replace(RECIPES["simclr.shapes"](), save_every=2), 2, 0)


@pytest.fixture
def state():
    method = make("simclr")
    optimizer = torch.optim.SGD(method.parameters(), lr=0.1)
    return State(method, optimizer, GradScaler(torch.device("cpu"), enabled=False))


def take_step(state: State, gradient: float = 1.0, loss: float = 1.0) -> Step:
    state.scaler.unscale([torch.tensor([gradient])], torch.tensor(state.step))
    state.step += 1
    return Step(torch.tensor(loss), torch.zeros(1, 1))


def test_a_checkpoint_waits_for_a_step_that_was_taken_with_a_finite_loss(saver, state):
    due, saved = [], []
    for number in range(1, 9):
        bad = {4: {"gradient": math.nan}, 5: {"loss": math.inf}}
        step = take_step(state, **bad.get(number, {}))
        due.append(saver.is_due(state.step))
        if due[-1]:
            saver.save(state, step)
        saved.append(saver.kept[-1:])
    assert due == [False, False, False, True, True, True, False, True]
    assert saved == [[]] * 5 + [[6], [6], [8]]
    assert checkpoint.read_step(saver.run.checkpoints / checkpoint.LAST) == 8


def test_a_checkpoint_that_was_asked_for_at_a_skipped_step_is_due_at_the_next(saver, state):
    saver.save(state, take_step(state, gradient=math.nan))
    assert saver.kept == [] and saver.is_due(2)
    saver.save(state, take_step(state))
    assert saver.kept == [2] and not saver.is_due(3)


def test_where_no_step_follows_only_weights_that_are_not_finite_are_not_saved(saver, state):
    saver.save(state, take_step(state, gradient=math.nan), wait=False)
    assert saver.kept == [1]
    with torch.no_grad():
        next(state.method.parameters()).fill_(math.nan)
    with pytest.raises(DivergedError, match=r"By step 2 .* is no longer finite"):
        saver.save(state, take_step(state), wait=False)


def test_the_newest_of_the_last_two_checkpoints_before_a_step_is_kept(saver, state):
    for number in range(1, 10):
        step = take_step(state)
        if number % 3 == 0:
            saver.save(state, step)
    kept = saver.run.checkpoints / checkpoint.BEFORE_SKIPPED
    for step, expected in ((9, 6), (10, 9)):  # the checkpoint of step 9 is of the time after it
        assert saver.keep_before(step) == checkpoint.read_step(kept) == expected
    assert saver.keep_before(6) is None
