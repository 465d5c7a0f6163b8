"""Long runs: flat memory, a bounded log, and disk space that is foreseen."""

from dataclasses import replace

import pytest
import torch

from selfsight.data import open_source
from selfsight.errors import UserError
from selfsight.optim import build_optimizer
from selfsight.run_files.run_folder import Run
from selfsight.train import checkpoint, disk_forecast, memory_forecast
from selfsight.train.disk_forecast import check_disk, foresee_disk
from selfsight.train.log_records import MAX_RECORDS, log_spacing
from tests.folders import images
from tests.train.long_run import train
from tests.train.test_step import batch, made


@pytest.mark.slow
def test_memory_descriptors_threads_and_children_are_flat(tmp_path):
    rows, run = train(tmp_path, steps=240, every=40)
    assert [row["step"] for row in rows] == [40, 80, 120, 160, 200, 240]
    settled = rows[2:]
    for name in ("descriptors", "threads", "children"):
        assert len({row[name] for row in settled}) == 1, rows
    assert settled[-1]["memory_mb"] < 1.02 * settled[0]["memory_mb"], rows
    assert len(list(run.checkpoints.iterdir())) == 2


@pytest.mark.parametrize(("steps", "every"), [(10_000, 10), (200_000, 10), (1_250_000, 63)])
def test_a_log_has_at_most_twenty_thousand_records(steps, every):
    _, stepper = made("simclr")
    assert log_spacing(stepper.recipe, steps) == every
    assert steps // every <= MAX_RECORDS


@pytest.mark.parametrize(("name", "optimizer"), [("moco", "sgd"), ("byol", "adamw")])
def test_the_size_of_a_checkpoint_is_foreseen(name, optimizer, tmp_path):
    state, stepper = made(name)
    optim = replace(stepper.recipe.optim, name=optimizer)
    stepper.recipe = replace(stepper.recipe, optim=optim)
    state.optimizer = build_optimizer(optim, state.method.named_parameters(), batch_size=8)
    state.probe = None
    stepper(batch(state))
    run = Run(tmp_path)
    run.recipe_path.write_text("{}")
    checkpoint.save(run, state.state_dict())
    size = (run.checkpoints / checkpoint.LAST).stat().st_size
    tensors = sum(memory_forecast.count_bytes(t) for t in _tensors(state.state_dict()))
    source = open_source(images(tmp_path / "photos"))
    foreseen = foresee_disk(stepper.recipe, source).checkpoint
    assert tensors - 2000 <= foreseen <= 1.05 * tensors  # the rest are counters
    assert foreseen < size < 1.2 * foreseen + 2**18  # and names, in a small network


def test_a_disk_that_is_too_small_is_refused_with_what_to_do(tmp_path, monkeypatch):
    _, stepper = made("simclr")
    source, run = open_source(images(tmp_path / "photos")), Run(tmp_path / "run")
    assert "are free" in check_disk(stepper.recipe, source, run)
    monkeypatch.setattr(disk_forecast, "free_bytes", lambda folder: 10 * 2**20)
    with pytest.raises(UserError, match=r"will need up to .* 10.0 MiB are free .* --out"):
        check_disk(stepper.recipe, source, run)
    run.path.mkdir()
    (run.path / "old.pt").write_bytes(bytes(40 * 2**20))  # of the run that is overwritten
    assert "are free" in check_disk(stepper.recipe, source, run)
    monkeypatch.setattr(disk_forecast, "foresee_cache", lambda *_, **__: 2**50)
    with pytest.raises(UserError, match=r"--data\.storage stream"):
        check_disk(stepper.recipe, source, run)


def _tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict | list):
        items = value.values() if isinstance(value, dict) else value
        return [t for item in items for t in _tensors(item)]
    return []
