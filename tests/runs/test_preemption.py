"""Real signals and kills: the run is saved, and the same command brings it back."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest

from selfsight.cli.main import main
from selfsight.run_files.run_folder import Run
from selfsight.train import checkpoint
from tests.folders import images

TRAINING = ["--method", "simclr", "--device", "cpu", "--batch-size", "8", "--log-every", "1"]
TRAINING += ["--backbone.name", "resnet8_narrow", "--save-every", "100"]
# One process for every task, as srun starts them; the ids of the processes go to a file.
SRUN = """
import os, subprocess, sys
tasks = [
    subprocess.Popen(
        sys.argv[1:], env=os.environ | {"SLURM_PROCID": str(i), "SLURM_LOCALID": str(i)}
    )
    for i in range(2)
]
open("pids", "w").write(" ".join(str(task.pid) for task in tasks))
sys.exit(max(task.wait() for task in tasks))
"""
SCONTROL = """
import sys
if sys.argv[1] == "requeue":
    open("requeued", "a").write(sys.argv[2])
else:
    print("127.0.0.1")
"""
SBATCH = """
import os, subprocess, sys
job = {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "localhost", "SLURM_NTASKS": "2"}
while True:
    status = subprocess.run(["bash", sys.argv[1]], env=os.environ | job).returncode
    if not os.path.exists("requeued") or os.path.getsize("requeued") > 2:
        sys.exit(status)
    open("requeued", "a").write(" ")
"""


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return images(tmp_path_factory.mktemp("data") / "photos", count=32)


def wait_until(condition, seconds=90.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def environment(folder):
    return os.environ | {"OMP_NUM_THREADS": "1", "PATH": f"{folder}:{os.environ['PATH']}"}


def test_the_slurm_script_has_the_options_and_settings_of_the_command(photos, tmp_path, capsys):
    script, out = tmp_path / "job.sh", tmp_path / "my run"
    words = [str(photos), *TRAINING, "--epochs", "3", "--keep-epochs", "1", "2", "--out", str(out)]
    main(["pretrain", *words, "--sbatch", str(script)])
    assert f"sbatch {script}" in capsys.readouterr().out
    text = script.read_text()
    (line,) = re.findall(r"^    (.* -m selfsight pretrain .*)$", text, re.MULTILINE)
    written = shlex.split(line)[4:]
    assert written[:4] == [str(photos), "--out", str(out), "--resume"]
    for word in words:
        assert word in written
    assert "#SBATCH --signal=USR1@120" in text and "--gpus-per-node" not in text
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    assert not out.exists()


def test_a_slurm_script_is_written_only_for_a_command_that_trains(photos, tmp_path, capsys):
    for wrong in (["--optim.lrr", "3"], ["--method", "mocov4"], ["--overwrite"]):
        with pytest.raises(SystemExit):
            main(["pretrain", str(photos), *wrong, "--sbatch", str(tmp_path / "job.sh")])
        assert not (tmp_path / "job.sh").exists()


@pytest.mark.slow
def test_a_slurm_job_whose_time_is_over_goes_back_to_the_queue(photos, tmp_path):
    """SIGUSR1 reaches the second of two tasks only; both save, exit with 138 and come back."""
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("sbatch", SBATCH)):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!{sys.executable}\n{text}")
        program.chmod(0o755)
    run = Run(tmp_path / "run")
    words = [str(photos), *TRAINING, "--epochs", "12", "--out", str(run.path)]
    main(["pretrain", *words, "--sbatch", str(tmp_path / "job.sh")])
    with subprocess.Popen(
        ["sbatch", "job.sh"],
        cwd=tmp_path,
        env=environment(tmp_path / "bin"),
        stderr=subprocess.PIPE,
        text=True,
    ) as job:
        wait_until(lambda: len(run.records()) > 2)
        second = int((tmp_path / "pids").read_text().split()[1])
        os.kill(second, signal.SIGUSR1)
        started = time.monotonic()
        wait_until((run.checkpoints / "last.pt").exists)  # its first
        seconds = time.monotonic() - started
        said = job.communicate()[1]
    assert job.returncode == 0
    assert seconds < 10
    assert said.count("Stopped by SIGUSR1 at step") == 1
    assert (tmp_path / "requeued").read_text() == "77 "
    steps = [record["step"] for record in run.records()]
    assert steps == list(range(1, 49))
    assert run.result("verdict")


@pytest.mark.slow
def test_torchrun_restarts_the_job_of_a_killed_worker(photos, tmp_path):
    run = Run(tmp_path / "run")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    torchrun += ["--max-restarts", "1", "--standalone", "-m", "selfsight", "pretrain"]
    words = [str(photos), *TRAINING, "--epochs", "6", "--save-steps", "5", "--resume"]
    with subprocess.Popen(
        [*torchrun, *words, "--out", str(run.path)],
        env=environment(tmp_path),
        stderr=subprocess.PIPE,
        text=True,
    ) as job:
        wait_until(lambda: len(run.records()) > 7)
        holder = (run.path / "lock").read_text()
        os.kill(int(holder.split()[1]), signal.SIGKILL)  # the worker with rank 0
        said = job.communicate()[1]
    assert job.returncode == 0, said
    assert "Traceback" not in said or "SIGKILL" in said
    assert [record["step"] for record in run.records()] == list(range(1, 25))
    assert checkpoint.load(run)["step"] == 24
    assert run.result("verdict")


@pytest.mark.slow
def test_signals_during_imports_reading_and_steps_end_in_a_sentence(photos, tmp_path):
    """So many seconds after the first import of the command line, and while steps are taken."""
    words = ["-m", "selfsight", "pretrain", str(photos), *TRAINING, "--epochs", "2000"]
    for pause in (0.0, 0.3, 1.0, 2.0, None):
        run = Run(tmp_path / f"run-{pause}")
        number = signal.SIGTERM if pause is None else signal.SIGINT
        python = [sys.executable, *([] if pause is None else ["-X", "importtime"])]
        with subprocess.Popen(
            [*python, *words, "--out", str(run.path)],
            stderr=subprocess.PIPE,
            text=True,
            # In the background of a script SIGINT is ignored, and would stay so.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        ) as job:
            if pause is None:
                wait_until(lambda run=run: len(run.records()) > 2)
            else:  # Python itself has started, and the first import is done
                next(line for line in job.stderr if "tyro" in line)
                time.sleep(pause)
            job.send_signal(number)
            said = job.communicate(timeout=60)[1]
        assert job.returncode == 128 + number, said
        assert "Traceback" not in said
        assert "topped by " in said
    assert checkpoint.load(run)["step"] == run.records()[-1]["step"]
    assert not (run.path / "lock").exists()
