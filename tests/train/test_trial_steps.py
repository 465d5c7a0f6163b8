"""Steps that are tried before a run."""

from unittest import mock

import pytest
import torch

from selfsight.methods import DataInfo
from selfsight.recipes.auto_recipe import DataProfile, build_auto_recipe
from selfsight.train import trial_steps
from selfsight.train.training_state import State

CPU = torch.device("cpu")


@pytest.mark.parametrize("seconds", [0.1, 0.5, 30.0])
def test_the_speed_is_that_of_the_steps_after_the_first(seconds, monkeypatch):
    recipe, _ = build_auto_recipe(DataProfile(count=64, short_side=32), CPU)
    now, steps = [0.0], []

    def train(state, batches, *_, **__):
        for batch in batches:
            steps.append([view.shape for view in batch.views])
            now[0] += seconds if len(steps) > 1 else 1000.0
            yield batch, None

    monkeypatch.setattr(trial_steps, "train", train)
    monkeypatch.setattr(trial_steps.time, "monotonic", lambda: now[0])
    speed = trial_steps.measure_speed(recipe, CPU, DataInfo(64, 2))
    assert speed == pytest.approx(recipe.batch_size / seconds)
    assert steps[0] == [(recipe.batch_size, 3, 32, 32)] * 2
    assert now[0] - 1000 <= max(2 * seconds, trial_steps.TIMED_SECONDS + seconds)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, RuntimeError])
def test_steps_that_fail_have_no_speed(error, monkeypatch):
    def train(*_, **__):
        raise error

    recipe, _ = build_auto_recipe(DataProfile(count=64, short_side=32), CPU)
    monkeypatch.setattr(trial_steps, "train", train)
    assert trial_steps.measure_speed(recipe, CPU, DataInfo(64, 2)) is None


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # of torch's own
def test_timed_steps_leave_the_memory_of_a_gpu_as_it_was():
    cuda = torch.device("cuda", 0)
    recipe, _ = build_auto_recipe(DataProfile(count=50_000, short_side=32), cuda)
    trial_steps.measure_speed(recipe, cuda, DataInfo(50_000, 2))  # libraries keep some memory
    allocated, reserved = torch.cuda.memory_allocated(cuda), torch.cuda.memory_reserved(cuda)
    speed = trial_steps.measure_speed(recipe, cuda, DataInfo(50_000, 2))
    assert speed > 1000
    assert torch.cuda.memory_allocated(cuda) <= allocated + 2**20
    assert torch.cuda.memory_reserved(cuda) <= reserved + 2**26


@pytest.mark.parametrize(("seconds", "steps"), [(0.3, 5), (0.11, 8), (0.05, 36)])
def test_a_graph_is_recorded_only_where_it_could_be_faster(seconds, steps, monkeypatch):
    recipe, _ = build_auto_recipe(DataProfile(count=64, short_side=32), CPU)
    now, ran = [0.0], []

    def train(*_, **__):
        for number in range(100):
            ran.append(number)
            now[0] += seconds if number >= 3 else 10.0  # kernels are chosen
            yield None, None

    monkeypatch.setattr(trial_steps, "train", train)
    monkeypatch.setattr(trial_steps.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(trial_steps, "can_record", lambda *_: True)
    speed = trial_steps.measure_speed(recipe, CPU, DataInfo(64, 2))
    assert speed == pytest.approx(recipe.batch_size / seconds)
    assert len(ran) == steps


@pytest.mark.parametrize(("count", "expected"), [(1, 1000.0), (4, 0.5), (30, 0.5)])
def test_a_training_that_ends_before_the_timed_steps_has_a_speed(count, expected, monkeypatch):
    recipe, _ = build_auto_recipe(DataProfile(count=64, short_side=32), CPU)
    now = [0.0]

    def train(*_, **__):
        for number in range(count):
            now[0] += 0.5 if number else 1000.0
            yield None, None

    monkeypatch.setattr(trial_steps, "train", train)
    monkeypatch.setattr(trial_steps, "can_record", lambda *_: True)  # 16 steps are not timed
    monkeypatch.setattr(trial_steps.time, "monotonic", lambda: now[0])
    speed = trial_steps.time_steps(mock.Mock(spec=State), (), recipe, steps_per_epoch=4, device=CPU)
    assert speed == pytest.approx(recipe.batch_size / expected)
