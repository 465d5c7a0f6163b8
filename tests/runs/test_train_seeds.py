"""Several seeds: folders, what is trained again, signals, and one process on each GPU."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

from selfsight.cli.main import main
from selfsight.errors import DivergedError, RunError, StoppedError, UserError
from selfsight.options.pretrain_options import PretrainOptions
from selfsight.run_files.run_folder import Run
from selfsight.runs import train_seeds as seeds
from selfsight.train import checkpoint
from tests.folders import QUICK, images

CPU = torch.device("cpu")
QUIET = Console(quiet=True)


def write_run(out, seed, accuracy):
    """What a run leaves, as far as the table needs it."""
    run = Run(Path(out))
    run.write_result("online_knn", {"accuracy": accuracy, "settings": {}})
    run.write_result("verdict", {"verdict": "learning", "sentence": "", "evidence": []})
    run.recipe_path.write_text(json.dumps({"seed": seed, "changed": ["seed"]}))
    return run


def never(job):
    raise AssertionError(f"{job.out} is trained in this process")


def train_all(options, train=never, device=CPU):
    return seeds.train_seeds("photos", options, device, train, QUIET)


def test_each_seed_has_a_folder_and_the_mean_is_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    trained = []

    def train(job):
        trained.append((job.seed, str(job.out), job.resume, job.seeds, job.method))
        return write_run(job.out, job.seed, 0.5 + job.seed / 10)

    runs = train_all(PretrainOptions(seeds=(2, 0, 1), method="moco"), train)
    assert [run.path.name for run in runs] == [f"photos-moco-seed{i}" for i in (2, 0, 1)]
    expected = [(i, f"runs/photos-moco-seed{i}", True, (), "moco") for i in (2, 0, 1)]
    assert trained == expected
    assert "60.0%" in (out := capsys.readouterr().out) and "10.0 points" in out
    again = train_all(PretrainOptions(seeds=(0,), out="runs/photos-moco"), train)
    assert again == runs[1:2]  # the rule is the same for a folder that is named


def test_a_stop_says_how_to_go_on_and_a_diverged_seed_does_not_end_the_others(tmp_path):
    options = PretrainOptions(seeds=(0, 1, 2), out=tmp_path / "run")

    def stop(job):
        if job.seed == 1:
            raise StoppedError("Stopped by Ctrl-C at step 3.", signal.SIGINT)
        return write_run(job.out, job.seed, 0.5)

    with pytest.raises(StoppedError, match=r"step 3\. 2 of 3 seeds are not finished\. Repeat"):
        train_all(options, stop)

    def diverge(job):
        if job.seed == 1:
            raise DivergedError("The loss is not finite.")
        return write_run(job.out, job.seed, 0.5)

    with pytest.raises(RunError, match=r"1 of 3 runs did not end\. Seed 1: The loss is not finite"):
        train_all(options, diverge)
    assert (tmp_path / "run-seed2" / "recipe.json").exists()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"seeds": (1, 1)}, "more than once"),
        ({"seeds": (0, 1), "overwrite": True}, "--overwrite would train them all again"),
        ({"seeds": (0, 1), "sbatch": "job.sh"}, "one for each seed"),
        ({"seeds": (0, 1), "seed": 3}, "--seed or --seeds, not both"),
        ({"parallel": 2}, "--parallel needs --seeds"),
        ({"seeds": (-1,)}, "seeds"),
    ],
)
def test_what_makes_no_sense_for_several_seeds_is_refused(changes, sentence):
    with pytest.raises(UserError, match=sentence):
        train_all(PretrainOptions(**changes))


def test_torchrun_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="start it once for each seed"):
        train_all(PretrainOptions(seeds=(0, 1)))


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A program in place of Python: it notes its GPU and ends, or waits for a signal."""
    program = tmp_path / "stand_in"
    program.write_text(
        "#!/bin/sh\n"
        f"cd {tmp_path}\n"
        'for word in "$@"; do [ "$last" = --out ] && out=$word; last=$word; done\n'
        "mkdir -p $out/results\n"
        'name=$(basename $out); echo "$CUDA_VISIBLE_DEVICES $*" > $name.started\n'
        "[ -e fail-$name ] && { echo selfsight: it broke.; exit 1; }\n"
        "[ -e mistake ] && { rmdir -p $out/results 2>/dev/null; echo selfsight: No.; exit 2; }\n"
        "trap 'echo saved > $name.saved; exit 130' INT\n"
        "while [ -e wait ]; do sleep 0.05; done\n"
        "echo '{\"seed\": 0}' > $out/recipe.json\n"
        "echo '{\"accuracy\": 0.5}' > $out/results/online_knn.json\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(seeds, "POLL_SECONDS", 0.01)
    return tmp_path


def started(folder):
    return {p.stem: p.read_text() for p in folder.glob("*.started")}


def test_every_seed_gets_a_gpu_of_its_own(stand_in, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, GPU-7")
    options = PretrainOptions(seeds=(0, 1), out=stand_in / "r", settings=("--optim.lr", "0.5"))
    train_all(options, never, torch.device("cuda"))
    found = started(stand_in)
    assert found["r-seed0"].startswith("4 ") and found["r-seed1"].startswith("GPU-7 ")
    assert "--seed 1 " in found["r-seed1"] and found["r-seed1"].endswith("--optim.lr 0.5\n")
    assert "--resume" in found["r-seed0"] and "--seeds" not in found["r-seed0"]


def test_no_more_run_at_a_time_than_asked_and_a_failure_is_named(stand_in):
    (stand_in / "fail-r-seed1").touch()
    options = PretrainOptions(seeds=(0, 1, 2, 3), out=stand_in / "r", parallel=2)
    with pytest.raises(RunError, match=r"1 of 4 runs .* Seed 1 ended with status 1: it broke"):
        train_all(options)
    assert len(started(stand_in)) == 4


def test_a_mistake_in_the_command_is_said_once(stand_in):
    (stand_in / "mistake").touch()
    options = PretrainOptions(seeds=tuple(range(9)), out=stand_in / "r", parallel=2)
    with pytest.raises(UserError, match=r"^No\.$"):
        train_all(options)
    assert len(started(stand_in)) <= 3


def test_a_signal_reaches_every_process_and_nothing_new_begins(stand_in):
    (stand_in / "wait").touch()
    timer = subprocess.Popen(  # of another process, as a terminal sends it
        [
            "sh",
            "-c",
            f"while [ ! -e {stand_in}/r-seed1.started ]; do sleep 0.05; done; sleep 0.2; "
            f"kill -INT {os.getpid()}",
        ]
    )
    options = PretrainOptions(seeds=(0, 1, 2), out=stand_in / "r", parallel=2)
    with pytest.raises(StoppedError, match="3 of 3 seeds are not finished") as stopped:
        train_all(options)
    timer.wait()
    assert stopped.value.signal_number == signal.SIGINT
    assert sorted(path.stem for path in stand_in.glob("*.saved")) == ["r-seed0", "r-seed1"]
    assert "r-seed2" not in started(stand_in)


@pytest.mark.slow
def test_seeds_that_are_stopped_go_on_in_processes_to_what_one_run_gives(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    photos = str(images(tmp_path / "photos", count=16))
    words = ["pretrain", photos, *QUICK, "--method", "simclr"]
    words += ["--views.0.size", "16", "--views.1.size", "16"]
    several = [*words, "--seeds", "0", "1", "--out", str(tmp_path / "several")]
    log = tmp_path / "several-seed0" / "log.jsonl"
    wait = f"while [ ! -e {log} ]; do sleep 0.02; done; kill -INT {os.getpid()}"
    with subprocess.Popen(["sh", "-c", wait]), pytest.raises(SystemExit) as stopped:
        main(several)
    assert stopped.value.code == 130
    main([*several, "--parallel", "2"])
    main([*words, "--seed", "0", "--out", str(tmp_path / "one")])
    names = ("one", "several-seed0")
    one, other = (checkpoint.load(Run(tmp_path / name))["method"] for name in names)
    assert all(torch.equal(one[name], other[name]) for name in {**one, **other})
