"""A process group on loopback that runs functions on every rank and hands back their results."""

import os
import socket
import traceback

import torch
import torch.distributed as td
import torch.multiprocessing as mp


class Processes:
    """`group(function, *args)` calls function(*args) on every rank; a list of results by rank."""

    def __init__(self, world_size: int) -> None:
        # A server imports torch and selfsight once; the processes are forked from it.
        context = mp.get_context("forkserver")
        context.set_forkserver_preload(["tests.dist.preload"])
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
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

    def __enter__(self):
        for worker in self.workers:
            worker.start()
        return self

    def __exit__(self, *_):
        for tasks in self.tasks:
            tasks.put(None)
        for worker in self.workers:
            worker.join(timeout=20)

    def __call__(self, function, *args):
        for tasks in self.tasks:
            tasks.put((function, args))
        results = [answers.get(timeout=120) for answers in self.answers]
        for rank, (_, error) in enumerate(results):
            assert error is None, f"rank {rank}:\n{error}"
        return [result for result, _ in results]


def _work(rank, world_size, port, tasks, answers):
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
