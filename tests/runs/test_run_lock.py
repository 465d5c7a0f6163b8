"""A run folder serves one job at a time, and an old run goes only when a new one has begun."""

import json
import os
import signal
import subprocess
import sys

import pytest

from selfsight import api
from selfsight.cli.main import main
from selfsight.errors import StoppedError, UserError
from selfsight.run_files.run_folder import Run
from selfsight.runs import new_run_folder, run_lock
from selfsight.train import checkpoint
from tests.folders import QUICK, images


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return images(tmp_path_factory.mktemp("data") / "photos", count=24)


@pytest.fixture
def old(tmp_path):
    """What a run leaves behind, as far as the lock and overwriting look."""
    run = Run(tmp_path / "run")
    run.checkpoints.mkdir(parents=True)
    run.recipe_path.write_text('{"old": true}')
    run.log_path.write_text('{"step": 4}\n')
    (run.checkpoints / "last.pt").write_text("weights")
    return run


def content(run):
    return {
        str(path.relative_to(run.path)): path.read_text()
        for path in run.path.rglob("*")
        if path.is_file()
    }


def test_a_second_job_is_refused_and_told_who_holds_the_folder(old, photos, capsys):
    before = content(old)
    with run_lock.lock_run(old):
        for words in (
            ["pretrain", photos, *QUICK, "--out", old.path, "--overwrite"],
            ["pretrain", photos, *QUICK, "--out", old.path, "--resume"],
            ["pretrain", photos, *QUICK, "--out", old.path],
            ["resume", old.path],
        ):
            with pytest.raises(SystemExit) as stopped:
                main(list(map(str, words)))
            assert stopped.value.code == 2
            assert f"is being written by process {os.getpid()} on" in capsys.readouterr().err
    assert content(old) == before
    with run_lock.lock_run(old):
        pass


def test_a_folder_in_which_nothing_began_is_removed(tmp_path):
    with run_lock.lock_run(Run(tmp_path / "a/run")):
        assert (tmp_path / "a/run/lock").exists()
    assert not (tmp_path / "a/run").exists()


def test_an_unwritable_folder_gets_a_sentence(photos, capsys):
    """Not even root may create a folder in /sys."""
    with pytest.raises(SystemExit) as stopped:
        main(["pretrain", str(photos), *QUICK, "--out", "/sys/kernel/run"])
    said = capsys.readouterr().err
    assert stopped.value.code == 2 and said.count("\n") == 1
    assert "/sys/kernel/run cannot be created: Operation not permitted" in said


MISTAKES = {
    "method": ["--method", "mocov4"],
    "setting": ["--optim.lrr", "1"],
    "value": ["--method.temperature", "warm"],
    "batch": ["--batch-size", "20"],
    "epochs": ["--epochs", "0"],
    "device": ["--device", "tpu"],
    "labels": ["--method", "supervised"],
    "recipe": ["--recipe", "moco.no_such"],
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_overwrite_with_a_mistake_in_the_same_line_deletes_nothing(mistake, old, photos, capsys):
    before = content(old)
    words = [str(photos), *QUICK, *MISTAKES[mistake], "--out", str(old.path), "--overwrite"]
    with pytest.raises(SystemExit) as stopped:
        main(["pretrain", *words])
    assert stopped.value.code == 2
    assert content(old) == before


def test_missing_data_deletes_nothing(old):
    before = content(old)
    with pytest.raises(UserError, match="no file or folder"):
        api.pretrain("no/such/folder", out=old.path, overwrite=True, device="cpu")
    assert content(old) == before


def test_an_old_run_is_there_until_the_first_checkpoint_of_the_new(old, photos, monkeypatch):
    before, log = content(old), Run.log

    def log_and(action):
        def logged(run, record):
            log(run, record)
            assert (run.overwritten / "checkpoints/last.pt").read_text() == "weights"
            action()

        return logged

    def train():
        flags = ["--backbone.name", "resnet8_narrow", "--log-every", "1"]
        return api.pretrain(
            photos,
            out=old.path,
            overwrite=True,
            device="cpu",
            epochs=1,
            batch_size=8,
            settings=flags,
        )

    monkeypatch.setattr(Run, "log", log_and(lambda: 1 / 0))
    with pytest.raises(ZeroDivisionError):
        train()
    assert content(old) == before  # the new one had no checkpoint
    monkeypatch.setattr(Run, "log", log_and(lambda: os.kill(os.getpid(), signal.SIGTERM)))
    with pytest.raises(StoppedError):
        train()
    assert not old.overwritten.exists()
    assert checkpoint.load(old)["step"] == 1
    assert "old" not in json.loads(old.recipe_path.read_text())


@pytest.mark.parametrize("moves", range(4))
def test_a_kill_while_the_old_run_is_moved_loses_nothing(old, moves, monkeypatch):
    """The next job on the folder puts it back."""
    before, replace = content(old), os.replace

    def replace_some(*words, left=[moves]):  # noqa: B006
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        replace(*words)

    monkeypatch.setattr(os, "replace", replace_some)
    if moves < 3:
        with pytest.raises(KeyboardInterrupt):
            new_run_folder.set_old_run_aside(old)
    else:
        new_run_folder.set_old_run_aside(old)
    monkeypatch.undo()
    with run_lock.lock_run(old):
        assert old.recipe_path.exists()
    assert content(old) == before


HOLDER = """
import os, signal, sys, time
from pathlib import Path
from selfsight.data.decoders.decode_workers import DecodeProcesses
from selfsight.run_files.run_folder import Run
from selfsight.runs.run_lock import lock_run

with lock_run(Run(Path(sys.argv[1]))):
    workers = DecodeProcesses(1)
    assert workers.wait()
    os.killpg(workers.parent.pid, signal.SIGSTOP)  # else they end with this process
    print(workers.parent.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_a_lock_ends_with_its_process_though_workers_live(tmp_path):
    run = Run(tmp_path / "run")
    command = [sys.executable, "-c", HOLDER, str(run.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        workers = int(holder.stdout.readline())
        try:
            with pytest.raises(UserError, match=f"process {holder.pid} on"), run_lock.lock_run(run):
                pass
            holder.kill()
            holder.wait()
            os.killpg(workers, 0)  # they live
            with run_lock.lock_run(run):
                pass
        finally:
            os.killpg(workers, signal.SIGKILL)
