"""A step that several processes take together, each on a GPU or on processor cores of its own."""

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
from selfsight.bench.step_cost import Spent, step
from selfsight.data.decode_threads import num_workers
from selfsight.errors import UserError
from selfsight.recipe import Recipe, from_dict, to_dict

LIMIT = 1800.0  # seconds after which processes that still run are ended
LAST_WORDS = 2000  # characters of a failed process's messages that are repeated
CHILD = "from selfsight.bench.multi_process import child; child()"


def most(device: torch.device) -> int:
    """How many processes this machine holds without sharing a GPU or a core."""
    return torch.cuda.device_count() if device.type == "cuda" else num_workers()


def counts(largest: int) -> list[int]:
    """1, 2, 4 and so on, and the largest itself."""
    return [*(2**i for i in range(largest.bit_length()) if 2**i < largest), largest]


def threads(largest: int) -> int:
    """Of each process, however many run: the largest number of them must find room."""
    return max(1, num_workers() // largest)


def together(
    recipe: Recipe, count: int, device: torch.device, *, processes: int, each: int, seconds: float
) -> Spent:
    """What a step takes of processes with `each` threads; the recipe's batch is that of all."""
    job = {"recipe": to_dict(recipe), "images": count, "device": device.type, "seconds": seconds}
    with tempfile.TemporaryDirectory(prefix="selfsight-processes-") as name:
        folder = Path(name)
        (folder / "job.json").write_text(json.dumps(job))
        port, children = _free_port(), list[subprocess.Popen[bytes]]()
        try:
            for rank in range(processes):
                children.append(_started(folder, rank, processes, port, each))
            _wait(children, folder)
        finally:
            for one in children:
                one.kill()
                one.wait()
        return Spent(**json.loads((folder / "spent.json").read_text()))


def child() -> None:
    """One of the processes: it measures with the others, and the first writes what was found."""
    folder = Path(sys.argv[1])
    try:
        job = json.loads((folder / "job.json").read_text())
        # A method from outside is the one that the parent has imported already.
        recipe = from_dict(job["recipe"], allow=job["recipe"]["method"]["name"])
        dist.start(job["device"])
        device = torch.device("cpu")
        if job["device"] == "cuda":
            device = torch.device("cuda", dist.local_rank())
        spent = step(recipe, job["images"], device, seconds=job["seconds"])
        if dist.rank() == 0:
            (folder / "spent.json").write_text(json.dumps(spent._asdict()))
        dist.stop()
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)  # a group in which others still wait cannot be left in order


def _started(
    folder: Path, rank: int, processes: int, port: int, each: int
) -> subprocess.Popen[bytes]:
    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "MASTER_PORT": port}
    told |= {"OMP_NUM_THREADS": each, "MKL_NUM_THREADS": each}
    around = os.environ | {k: str(v) for k, v in told.items()} | {"MASTER_ADDR": "127.0.0.1"}
    with _messages(folder, rank).open("w") as out:
        command = [sys.executable, "-c", CHILD, str(folder)]
        return subprocess.Popen(command, env=around, stdout=subprocess.DEVNULL, stderr=out)


def _wait(children: list[subprocess.Popen[bytes]], folder: Path) -> None:
    """Until all are done, one has failed, or the time is up."""
    began, n = time.monotonic(), len(children)
    while None in (codes := [one.poll() for one in children]) and not any(codes):
        if time.monotonic() - began > LIMIT:
            raise UserError(
                f"{n} processes that were measured together had not finished after {LIMIT:.0f} s "
                f'and were ended. The first had said "{_last_words(folder, 0)}". '
                "Try a smaller --batch-size."
            )
        time.sleep(0.05)
    if not any(codes):
        return
    # When one fails the others soon lose their connection to it: the first to speak has the cause,
    # unless one was killed and could not speak.
    failed = [rank for rank, code in enumerate(codes) if code]
    rank = min(failed, key=lambda i: (codes[i] > 0, _messages(folder, i).stat().st_mtime_ns))  # type: ignore[operator]
    raise UserError(
        f"Process {rank + 1} of {n} that were measured together ended with status {codes[rank]}; "
        f'it said "{_last_words(folder, rank)}". '
        "If memory was short, use a smaller --batch-size."
    )


def _messages(folder: Path, rank: int) -> Path:
    return folder / f"{rank}.txt"


def _last_words(folder: Path, rank: int) -> str:
    return _messages(folder, rank).read_text(errors="replace").strip()[-LAST_WORDS:] or "nothing"


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])
