"""Checkpoints: damage is noticed, and a good one is always left."""

import json
import os
import random
import shutil
import zipfile

import pytest
import torch

from selfsight.errors import UserError
from selfsight.methods import Method
from selfsight.run_files.json_files import WriteError, write_text
from selfsight.run_files.run_folder import Run
from selfsight.train import checkpoint
from selfsight.train.grad_scaler import GradScaler
from selfsight.train.training_state import State
from tests.folders import largest_file

CPU = torch.device("cpu")


def state(step, value=0.5, width=64):
    return {
        "method": {"student.backbone.conv1.weight": torch.full((width, 8), value)},
        "optimizer": {"state": {0: {"exp_avg": torch.full((width, 8), value)}}, "param_groups": []},
        "scaler": {},
        "probe": None,
        "step": step,
    }


@pytest.fixture
def run(tmp_path):
    """A run that saved steps 4 and 8."""
    run = Run(tmp_path)
    run.recipe_path.write_text("{}")
    checkpoint.save(run, state(4))
    checkpoint.save(run, state(8))
    return run


@pytest.fixture
def last(run):
    return run.checkpoints / "last.pt"


def test_one_flipped_bit_anywhere_is_noticed(run, last, capsys):
    """Every bit of the file's ends, where the archive's directory is, and others at random."""
    good = last.read_bytes()
    positions = [*range(40), *range(len(good) - 100, len(good))]
    positions += random.Random(0).sample(range(len(good)), 100)
    for position in positions:
        bit = 1 << position % 8
        last.write_bytes(good[:position] + bytes([good[position] ^ bit]) + good[position + 1 :])
        assert checkpoint.load(run)["step"] == 4, f"byte {position} of {len(good)}"
        said = capsys.readouterr().err
        assert "The checkpoint before it, of step 4, is used: previous.pt" in said
    last.write_bytes(good)
    assert checkpoint.load(run)["step"] == 8
    assert capsys.readouterr().err == ""


def test_torch_and_zipfile_read_a_checkpoint(last):
    assert torch.load(last, weights_only=True)["step"] == 8
    with zipfile.ZipFile(last) as archive:
        assert archive.testzip() is None and archive.comment.startswith(b"sha256:")


def test_a_checkpoint_without_a_checksum_is_not_used(run, last):
    torch.save(state(12), last)
    assert checkpoint.load(run)["step"] == 4


def test_a_file_cut_at_any_length_is_noticed(run, last):
    good = last.read_bytes()
    for length in (0, 1, 100, len(good) // 2, len(good) - 72, len(good) - 1):
        last.write_bytes(good[:length])
        assert checkpoint.load(run)["step"] == 4


def unusable_files(last):
    """Write one after the other, with what should be said about it."""
    last.write_text("not a checkpoint\n" * 50)
    yield "is not a checkpoint"
    last.unlink()
    last.mkdir()
    yield "cannot be read"
    last.rmdir()
    os.mkfifo(last)
    yield "is a named pipe"
    last.unlink()
    with zipfile.ZipFile(last, "w") as archive:
        archive.writestr("a.txt", "a")
    yield "is not a checkpoint"
    checkpoint._write(last, {"state_dict": {}})
    yield "is not a checkpoint of a run"
    checkpoint._write(last, {"step": [1, 2]})
    yield "is not a checkpoint of a run"
    checkpoint._write(last, state(8) | {"method": 3, "optimizer": [torch.tensor(torch.nan)]})
    yield "not finite (optimizer.0)"
    checkpoint._write(last, state(8, torch.nan))
    yield "not finite (method.student.backbone.conv1.weight)"


def test_a_checkpoint_that_is_text_foreign_or_nan_falls_back_with_a_sentence(run, last, capsys):
    for expected in unusable_files(last):
        assert checkpoint.load(run)["step"] == 4
        said = capsys.readouterr().err
        assert expected in said and said.count("\n") == 1


def test_a_checkpoint_of_another_network_falls_back(run, last, capsys):
    weight = torch.nn.Parameter(torch.zeros(64, 8))

    def use(saved):
        with torch.no_grad():
            weight.copy_(saved["method"]["student.backbone.conv1.weight"])

    shutil.copyfile(last, run.checkpoints / "previous.pt")
    other = Run(run.path / "other")
    other.path.mkdir()
    other.recipe_path.write_text("{}")
    checkpoint.save(other, state(99, width=32))
    shutil.copyfile(other.checkpoints / "last.pt", last)
    assert checkpoint.load_newest(run, use=use).state["step"] == 8
    assert "does not fit" in (said := capsys.readouterr().err) and "(The size of tensor" in said


def test_a_recipe_that_no_longer_fits_is_named_with_the_setting(run):
    layer = torch.nn.Linear(4, 3)

    def use(saved):
        layer.load_state_dict(saved["method"])

    old = {"method": torch.nn.Linear(4, 32).state_dict()}
    known = {"settings": {"method": {"name": "moco", "dim": 32}}}
    run.recipe_path.write_text('{"method": {"name": "moco", "dim": 3}, "seed": 0}')
    for settings, why in (
        ({}, r"\(weight has the shape \[32, 4\] in the checkpoint and \[3, 4\] by the recipe\)"),
        (known, r"\(method.dim is 3 there, and was 32 when it was saved\)"),
    ):
        for step in (4, 8):
            checkpoint.save(run, state(step) | old | settings)
        expected = rf"last.pt does not fit \S+/recipe.json {why};.*Restore recipe.json or a check"
        with pytest.raises(UserError, match=expected):
            checkpoint.load_newest(run, use=use)


def test_a_checkpoint_of_another_run_falls_back_though_its_tensors_fit(run, last, capsys):
    def build(seed):
        layer = Method()
        layer.weight = torch.nn.Parameter(torch.zeros(3))
        settings = {"method": {"temperature": 0.2}, "seed": seed, "optim": {"of_this_version": 1}}
        optimizer, scaler = torch.optim.SGD(layer.parameters()), GradScaler(CPU, enabled=False)
        return State(layer, optimizer, scaler, step=8 + seed, settings=settings)

    run.recipe_path.write_text(json.dumps(build(0).settings))
    older = build(0).state_dict()
    del older["settings"]["optim"]  # of a version that had fewer settings
    checkpoint.save(run, older)
    checkpoint.save(run, build(1).state_dict())
    found = checkpoint.load_newest(run, use=build(0).load_state_dict)
    assert found.state["step"] == 8
    said = capsys.readouterr().err
    assert "(seed is 0 there, and was 1 when it was saved)" in said
    assert checkpoint.load_newest(run).state["step"] == 9  # its weights alone can still be read


def test_memory_that_runs_out_is_not_a_damaged_checkpoint(run, last, monkeypatch):
    def fail(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        checkpoint.load_newest(run, use=fail)
    monkeypatch.setattr(torch, "load", fail)
    with pytest.raises(torch.OutOfMemoryError):
        checkpoint.load_newest(run)


def test_if_no_checkpoint_is_good_each_is_named_with_the_reason(run, last):
    last.write_text("text")
    os.truncate(run.checkpoints / "previous.pt", 50)
    with pytest.raises(
        UserError, match=r"last.pt is damaged.*previous.pt is damaged.*or delete .* again"
    ):
        checkpoint.load(run)


def test_a_broken_checkpoint_never_takes_the_place_of_a_good_one(run, last):
    last.write_text("text")
    checkpoint.set_aside(run, checkpoint.load_newest(run))
    assert checkpoint.load(run)["step"] == 4
    checkpoint.save(run, state(8))
    last.write_text("text")
    assert checkpoint.load(run)["step"] == 4


class Killed(BaseException):
    """What a kill looks like from inside."""


@pytest.mark.parametrize("call", range(4))
def test_a_kill_at_any_call_of_a_save_leaves_a_checkpoint(run, last, monkeypatch, call):
    """Calls that change the folder: two flushes and two renames."""
    count = iter(range(10))

    def killing(function):
        def call_or_die(*words):
            if next(count) == call:
                raise Killed
            return function(*words)

        return call_or_die

    for name in ("fsync", "replace"):
        monkeypatch.setattr(os, name, killing(getattr(os, name)))
    with pytest.raises(Killed):
        checkpoint.save(run, state(12))
    monkeypatch.undo()
    assert checkpoint.load(run)["step"] == (12 if call == 3 else 8)
    checkpoint.save(run, state(16))
    assert checkpoint.load(run)["step"] == 16
    last.write_text("text")
    assert checkpoint.load(run)["step"] == (12 if call == 3 else 8)


@pytest.mark.parametrize("size", [1000, 300_000])  # within the buffer of the file, and beyond it
def test_a_full_disk_leaves_the_last_checkpoint_and_no_half_file(run, size):
    large = state(12) | {"probe": torch.zeros(10**5)}
    with (
        largest_file(size),
        pytest.raises(WriteError, match=r"last.pt cannot be written: File too large"),
    ):
        checkpoint.save(run, large)
    assert checkpoint.load(run)["step"] == 8
    assert not (run.checkpoints / "last.pt.part").exists()
    checkpoint.save(run, state(12))
    assert checkpoint.load(run)["step"] == 12


def test_a_file_that_could_not_be_written_leaves_no_part_of_it(tmp_path):
    file = tmp_path / "page.html"
    file.write_text("before")
    with largest_file(100), pytest.raises(OSError, match="File too large"):
        write_text(file, "x" * 10**6)
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert file.read_text() == "before"


def test_a_deleted_folder_is_not_made_again(run):
    shutil.rmtree(run.path)
    with pytest.raises(
        WriteError, match=r"recipe\.json is gone, as if the folder had been deleted\.$"
    ):
        checkpoint.save(run, state(12))
    assert not run.path.exists()


def test_names_of_what_is_not_finite():
    assert checkpoint.find_non_finite(state(1)) is None
    bad = state(1)
    bad["optimizer"]["state"][0]["exp_avg"][3, 3] = float("-inf")
    assert checkpoint.find_non_finite(bad) == "optimizer.state.0.exp_avg"
