"""A process group on this machine that runs functions on every rank and returns their results."""

import os
import queue
import socket
import time
import traceback
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import torch
import torch.distributed as td
import torch.multiprocessing as mp

TIMEOUT = 120.0  # seconds that a function may take
# torch's optimizers import the compiler at their first step
PRELOAD = ("selfsight.conformance.processes_and_resume_checks", "torch._dynamo")


class RankError(RuntimeError):
    """A rank that failed or did not answer."""


class ProcessGroup:
    """`group(function, *args)` calls function(*args) on every rank; a list of results by rank."""

    def __init__(
        self,
        world_size: int,
        *,
        preload: Sequence[str] = PRELOAD,
        timeout: float = TIMEOUT,
    ) -> None:
        # A server imports these modules once; the processes are forked from it.
        context = mp.get_context("forkserver")
        context.set_forkserver_preload(list(preload))
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        self.timeout = timeout
        self.tasks = [context.Queue() for _ in range(world_size)]
        self.answers = [context.Queue() for _ in range(world_size)]
        self.workers = [
            context.Process(
                target=_work,
                args=(rank, world_size, port, self.tasks[rank], self.answers[rank]),
                daemon=True,
            )
            for rank in range(world_size)
        ]

    def __enter__(self) -> "ProcessGroup":
        for worker in self.workers:
            worker.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        for tasks in self.tasks:
            tasks.put(None)
        for worker in self.workers:
            worker.join(timeout=1 if isinstance(error, RankError) else 20)
            if worker.is_alive():  # waits for another rank
                worker.terminate()

    def __call__(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Run the function on every rank; raise a RankError if one fails or does not answer."""
        for tasks in self.tasks:
            tasks.put((function, args))
        results = []
        for rank in range(len(self.answers)):
            result, error = self._wait_for(rank)
            if error is not None:
                raise RankError(f"Rank {rank} failed:\n{error}")
            results.append(result)
        return results

    def _wait_for(self, rank: int) -> tuple[Any, str | None]:
        """The answer of a rank; raise a RankError if it does not come, or if a process has died."""
        end = time.monotonic() + self.timeout
        while True:
            try:
                answer: tuple[Any, str | None] = self.answers[rank].get(timeout=0.5)
                return answer
            except queue.Empty:
                for number, worker in enumerate(self.workers):
                    if worker.exitcode is not None:
                        raise RankError(
                            f"Rank {number} ended with status {worker.exitcode}."
                        ) from None
                if time.monotonic() > end:
                    raise RankError(f"Rank {rank} did not answer in {self.timeout:g} s.") from None


def _work(rank: int, world_size: int, port: int, tasks: Any, answers: Any) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    td.init_process_group("gloo", rank=rank, world_size=world_size)
    while (task := tasks.get()) is not None:
        function, args = task
        try:
            answers.put((function(*args), None))
        except Exception:
            answers.put((None, traceback.format_exc()))
    td.destroy_process_group()
