"""What goes wrong in training is recorded with its step and a checkpoint, and printed once."""

import math
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from selfsight.recipes import RECIPES
from selfsight.run_files.run_folder import Run
from selfsight.train import checkpoint
from selfsight.train.alarms import Alarms
from selfsight.train.checkpoint_schedule import Saver
from selfsight.train.grad_scaler import GradScaler
from selfsight.train.training_state import State
from tests.methods.small import make
from tests.train.test_collapse import record


def build(folder, *, precision="float32", saved=(), **settings) -> tuple[Alarms, State]:
    """The alarms of a run that has saved checkpoints at these steps, and its state."""
    run = Run(folder)
    recipe = replace(RECIPES["simclr.shapes"](), epochs=4, precision=precision)
    saver = Saver(run, recipe, 3, 0)
    if saved:
        run.recipe_path.write_text("{}")
    for step in saved:
        checkpoint.save(
            run, {name: {} for name in ("method", "optimizer", "scaler")} | {"step": step}
        )
        saver.kept.append(step)
    alarms = Alarms(run, recipe, saver, Console(width=300), **{"past": []} | settings)
    method = make("simclr")
    optimizer = torch.optim.SGD(method.parameters(), lr=0.1)
    scaler = GradScaler(torch.device("cpu"), enabled=precision == "fp16")
    return alarms, State(method, optimizer, scaler)


def take_step(state: State, gradient: float) -> None:
    """Take a step with this gradient."""
    state.scaler.unscale([torch.tensor([gradient])], torch.tensor(state.step))
    state.step += 1


@pytest.mark.parametrize(("precision", "said"), [("float32", 1), ("fp16", 0)])
def test_the_first_skipped_step_is_printed_unless_fp16_expects_it(
    tmp_path, capsys, precision, said
):
    alarms, state = build(tmp_path, precision=precision, saved=(3, 6))
    for step in range(1, 13):
        take_step(state, math.nan if step in (6, 8, 9, 11) else 1.0)
        if step % 2 == 0:
            alarms.check(state, None)
    events = alarms.run.events()
    # Of steps 8 and 9, each is the first between two records.
    assert [(e["event"], e["step"]) for e in events] == [
        *(("skipped", 6), ("skipped", 8), ("skipped", 9), ("skipped", 11))
    ]
    kept = [(e["checkpoint"], e["checkpoint_step"]) for e in events]
    assert kept == [
        ("before_skipped.pt", step) for step in (3, 6, 6, 6)
    ]  # of step 6 it is too late
    assert capsys.readouterr().out.count("was skipped: its gradient was not finite") == said


def test_a_run_diverged_at_the_first_of_its_last_skipped_steps(tmp_path):
    for number, (gradients, first) in enumerate(
        (([1.0, math.nan, 1.0, math.nan, math.nan], 4), ([1.0, math.nan, 1.0], 2), ([1.0] * 3, 3))
    ):
        alarms, state = build(tmp_path / str(number))
        alarms.run.path.mkdir()
        for gradient in gradients:
            take_step(state, gradient)
        alarms.record_divergence(state, "It diverged.")
        (event,) = alarms.run.events()
        assert (event["event"], event["step"], event["sentence"]) == (
            *("diverged", first, "It diverged."),
        )


def test_a_collapse_is_recorded_and_printed_once_though_the_run_is_resumed(tmp_path, capsys):
    records = [record(step, 0.8 if step < 10 else 0.03) for step in range(40)]
    alarms, state = build(tmp_path)
    for each in records[:30]:
        alarms.check(state, each)
    resumed, state = build(tmp_path, past=records[:30])
    for each in records[30:]:
        resumed.check(state, each)
    (event,) = alarms.run.events()
    assert (event["event"], event["step"], event["checkpoint"]) == ("collapsed", 12, None)
    assert capsys.readouterr().out.count("Collapse at step 12") == 1


@pytest.mark.parametrize(("classes", "events"), [(None, 1), (2, 0)])
def test_few_directions_are_no_alarm_if_there_are_few_classes(tmp_path, classes, events):
    alarms, state = build(tmp_path, classes=classes)
    for step in range(40):
        alarms.check(state, record(step, 0.8, rank=12.0 if step < 10 else 1.4))
    assert len(alarms.run.events()) == events
