"""Steps run uncompiled while another process compiles, and the log has the step of the change."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch

from selfsight import api
from selfsight.methods import DataInfo
from selfsight.recipe import Start, to_dict
from selfsight.train import compile_ahead, cuda_graph
from selfsight.train import pretrain as driver
from selfsight.train.compile_ahead import CompileAhead
from selfsight.train.cuda_graph import StepRunner
from tests.folders import images
from tests.train.test_step import batch, made

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


class Fake(CompileAhead):
    """A second process that compiles for `steps` calls, or that fits in no memory."""

    def __init__(self, recipe, steps=0):
        super().__init__(recipe, DataInfo(), CPU)
        self.left, self.calls = steps, []

    def is_needed(self):
        return True

    def start(self):
        self.calls.append("start")

    def compile(self):
        self.calls.append("compile")

    def note_compiled(self):
        self.noted = True

    def is_running(self):
        self.left -= 1
        return self.left >= 0


@pytest.fixture(autouse=True)
def resets(monkeypatch):
    """The devices whose peak of memory was reset."""
    resets = []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", resets.append)
    return resets


@pytest.fixture
def compiled(monkeypatch):
    """The calls that compile networks."""
    compiled = []
    monkeypatch.setattr(
        cuda_graph, "compile_networks", lambda method, blocks: compiled.append(blocks)
    )
    return compiled


def test_steps_continue_compiled_once_the_second_process_is_done(compiled):
    state, plain = made("mocov3")
    recipe = replace(plain.recipe, compile=True)
    ahead = Fake(recipe, steps=3)
    run_step = StepRunner(state, recipe, steps_per_epoch=5, device=CPU, ahead=ahead)
    seen = []
    for number in range(6):
        run_step(batch(state, seed=number))
        seen.append((run_step.recipe.compile, len(compiled)))
    assert seen == [(False, 0)] * 4 + [(True, 1)] * 2
    assert ahead.step == 4 and ahead.calls == ["start", "compile"]
    other, runner = made("mocov3")
    for number in range(6):
        runner(batch(other, seed=number))
    for mine, expected in zip(state.method.parameters(), other.method.parameters(), strict=True):
        assert torch.equal(mine, expected)


def test_a_first_step_that_needs_too_much_memory_uncompiled_is_compiled_at_once(
    compiled, monkeypatch
):
    state, plain = made("mocov3")
    ahead = Fake(replace(plain.recipe, compile=True), steps=9)
    run_step = StepRunner(state, ahead.recipe, steps_per_epoch=5, device=CPU, ahead=ahead)
    run, failed = run_step._run, []

    def too_much_at_first(given):
        if not failed:
            failed.append(True)
            raise torch.OutOfMemoryError
        return run(given)

    monkeypatch.setattr(run_step, "_run", too_much_at_first)
    assert torch.isfinite(run_step(batch(state)).loss)
    assert (state.step, int(run_step.step), ahead.step, len(compiled)) == (1, 1, 0, 1)
    assert "no memory" in ahead.describe() and ahead.calls == ["start"]


def test_it_is_needed_on_one_gpu_if_the_cache_has_no_code_yet(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "GPU")
    recipe = replace(made("mocov3")[1].recipe, compile=True)

    def needed(recipe=recipe, device=CUDA):
        return CompileAhead(recipe, DataInfo(), device).is_needed()

    assert needed()
    assert not needed(device=CPU)
    for setting in ({"repeatable": True}, {"compile": False}, {"activation_checkpointing": True}):
        assert not needed(replace(recipe, **setting))
    mark = compile_ahead._mark(recipe, DataInfo(), CUDA)
    mark.parent.mkdir()
    mark.touch()
    assert not needed()
    assert not needed(replace(recipe, seed=3, epochs=7))
    assert needed(replace(recipe, batch_size=16))
    assert needed(replace(recipe, start=Start(name="simclr.shapes", freeze=1)))
    CompileAhead(replace(recipe, batch_size=16), DataInfo(), CUDA).note_compiled()
    assert not needed(replace(recipe, batch_size=16))


def test_the_second_process_runs_a_step():
    recipe = made("moco")[1].recipe
    given = {
        "recipe": to_dict(recipe),
        "data": DataInfo(40, 5)._asdict(),
        "device": "cpu",
        "memory": 1.0,
    }
    command = [sys.executable, "-m", "selfsight.train.compile_ahead"]
    texts = (json.dumps(given), json.dumps(given | {"recipe": {}}), "")
    for text, code in zip(texts, (0, 1, 0), strict=True):
        done = subprocess.run(command, input=text, text=True, capture_output=True)
        assert done.returncode == code, done.stderr


def test_a_second_process_that_fails_is_named(monkeypatch):
    recipe = made("mocov3")[1].recipe
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (10, 10))
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda _: 1)
    monkeypatch.setattr(compile_ahead.sys, "executable", "/bin/false")
    ahead = CompileAhead(recipe, DataInfo(), CPU)
    ahead.start()
    ahead.compile()
    ahead.process.wait()
    ahead.finish(7)
    assert ahead.describe() == (
        "Steps are compiled from step 7 on. Compiling meanwhile failed: no output"
    )
    ahead.close()


def test_a_machine_that_starts_no_process_does_not_end_the_run(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (10, 10))
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda _: 1)
    monkeypatch.setattr(compile_ahead.sys, "executable", "/does/not/exist")
    ahead = CompileAhead(made("mocov3")[1].recipe, DataInfo(), CPU)
    ahead.start()
    ahead.compile()
    assert not ahead.is_running()
    ahead.finish(1)
    assert "no process could be started" in ahead.describe()
    ahead.close()


@pytest.mark.parametrize("step", [9, 10])
def test_it_compiles_after_the_first_step_and_ends_if_memory_is_short(monkeypatch, tmp_path, step):
    (tmp_path / "python").write_text("#!/bin/sh\ntouch $0.started\ncat > $0.json\n")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(compile_ahead.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (19, 100))
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda _: step)
    ahead = CompileAhead(made("mocov3")[1].recipe, DataInfo(), CPU)
    ahead.start()
    process = ahead.process
    while not (tmp_path / "python.started").exists():
        time.sleep(0.01)
    assert ahead.is_running()
    ahead.compile()
    if step == 9:
        assert process.wait() == 0
        assert json.loads((tmp_path / "python.json").read_text())["memory"] == 0.1
    else:
        assert process.poll() == -signal.SIGKILL and not ahead.is_running()
        ahead.finish(1)
        assert "no memory" in ahead.describe()
    ahead.close()


def test_a_run_whose_first_step_is_compiled_at_once_needs_no_second_process(monkeypatch, resets):
    monkeypatch.setattr(compile_ahead.sys, "executable", "/bin/cat")
    ahead = CompileAhead(made("mocov3")[1].recipe, DataInfo(), CPU)
    assert not resets
    ahead.start()
    assert resets == [CPU]  # steps that were tried before, maybe of a larger batch, do not count
    process = ahead.process
    ahead.finish(0)
    assert process.poll() is not None and "no memory" in ahead.describe()
    ahead.close()


def test_the_log_has_the_step_of_the_change(compiled, monkeypatch, tmp_path, capsys):
    def fake(recipe, data, device):
        return Fake(recipe, steps=1)

    monkeypatch.setattr(driver, "CompileAhead", fake)
    photos = images(tmp_path / "photos", count=18)
    flags = ("--backbone.name", "resnet8_narrow", "--log-every", "1")
    run = api.pretrain(
        photos, epochs=3, batch_size=8, device="cpu", out=tmp_path / "run", settings=flags
    )
    steps = [record.get("compiled_from_step") for record in run.records()]
    assert steps == [None, None, 2, 2, 2, 2]
    assert "Steps are compiled from step 2 on" in capsys.readouterr().err
