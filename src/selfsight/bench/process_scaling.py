"""Measure a step of several processes, each with its own GPU or its own processor cores."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from selfsight import dist
from selfsight.bench.step_cost import StepCost, measure_step
from selfsight.data.cgroup_limits import available_cpus
from selfsight.data.decoders.decode_workers import inherited_path
from selfsight.errors import UserError
from selfsight.recipe import Recipe, from_dict, to_dict

TIMEOUT = 1800.0  # seconds after which running processes are killed
ERROR_TAIL = 2000  # characters of a failed process's stderr that are shown
WORKER = "from selfsight.bench.process_scaling import run_worker; run_worker()"


def max_processes(device: torch.device) -> int:
    """Return how many processes can run here without sharing a GPU or a core."""
    return torch.cuda.device_count() if device.type == "cuda" else available_cpus()


def process_counts(largest: int) -> list[int]:
    """Return 1, 2, 4, ... and the largest number."""
    return [*(2**i for i in range(largest.bit_length()) if 2**i < largest), largest]


def threads_per_process(largest: int) -> int:
    """Return the threads of each process; the same for any number, so that the largest fits."""
    return max(1, available_cpus() // largest)


def measure_processes(
    recipe: Recipe,
    num_images: int,
    device: torch.device,
    *,
    processes: int,
    threads: int,
    seconds: float,
) -> StepCost:
    """Measure a step of several processes; the recipe's batch size is the global one."""
    job = {
        "recipe": to_dict(recipe),
        "images": num_images,
        "device": device.type,
        "seconds": seconds,
    }
    with tempfile.TemporaryDirectory(prefix="selfsight-processes-") as name:
        folder = Path(name)
        (folder / "job.json").write_text(json.dumps(job))
        port, workers = _free_port(), list[subprocess.Popen[bytes]]()
        try:
            for rank in range(processes):
                workers.append(_start_worker(folder, rank, processes, port, threads))
            _wait(workers, folder)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        return StepCost(**json.loads((folder / "cost.json").read_text()))


def run_worker() -> None:
    """Measure as one of the processes; rank 0 writes the result."""
    folder = Path(sys.argv[1])
    try:
        job = json.loads((folder / "job.json").read_text())
        # A method from outside the package was already imported by the parent.
        recipe = from_dict(job["recipe"], trust=True)
        with dist.process_group(job["device"]):
            device = torch.device("cpu")
            if job["device"] == "cuda":
                device = torch.device("cuda", dist.local_rank())
            cost = measure_step(recipe, job["images"], device, seconds=job["seconds"])
            if dist.rank() == 0:
                (folder / "cost.json").write_text(json.dumps(cost._asdict()))
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)  # leaving the group would wait for the other processes


def _start_worker(
    folder: Path, rank: int, processes: int, port: int, threads: int
) -> subprocess.Popen[bytes]:
    variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "MASTER_PORT": port}
    variables |= {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    environment = os.environ | {k: str(v) for k, v in variables.items()}
    environment |= {"MASTER_ADDR": "127.0.0.1"} | inherited_path()
    with _stderr_path(folder, rank).open("w") as out:
        command = [sys.executable, "-P", "-c", WORKER, str(folder)]
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=out)


def _wait(workers: list[subprocess.Popen[bytes]], folder: Path) -> None:
    """Wait until all workers are done; raise a UserError if one fails or time is up."""
    began, n = time.monotonic(), len(workers)
    while None in (codes := [worker.poll() for worker in workers]) and not any(codes):
        if time.monotonic() - began > TIMEOUT:
            raise UserError(
                f"{n} processes had not finished after {TIMEOUT:.0f} s and were killed. "
                f'The first printed "{_error_tail(folder, 0)}". '
                "Try a smaller --batch-size."
            )
        time.sleep(0.05)
    if not any(codes):
        return
    # When one fails, the others soon lose their connection: the first to print has the cause,
    # unless a process was killed and could not print.
    failed = [rank for rank, code in enumerate(codes) if code]
    rank = min(failed, key=lambda i: (codes[i] > 0, _stderr_path(folder, i).stat().st_mtime_ns))  # type: ignore[operator]
    raise UserError(
        f"Process {rank + 1} of {n} ended with status {codes[rank]}; "
        f'it printed "{_error_tail(folder, rank)}". '
        "If memory was short, use a smaller --batch-size."
    )


def _stderr_path(folder: Path, rank: int) -> Path:
    return folder / f"{rank}.txt"


def _error_tail(folder: Path, rank: int) -> str:
    return _stderr_path(folder, rank).read_text(errors="replace").strip()[-ERROR_TAIL:] or "nothing"


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])
