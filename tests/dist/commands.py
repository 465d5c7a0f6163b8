"""Start processes of a run by hand, as without torchrun: each runs the command line."""

import contextlib
import os
import socket
import sys
import time

import torch
import torch.multiprocessing as mp

from selfsight import dist


class Command:
    """One process, with what it prints to stderr."""

    def __init__(self, words, folder, variables):
        context = mp.get_context("forkserver")
        context.set_forkserver_preload(["tests.dist.preload"])
        self.stderr = folder / f"stderr-{variables['RANK']}"
        self.process = context.Process(
            target=_run, args=(list(map(str, words)), str(self.stderr), variables), daemon=True
        )
        self.process.start()

    @property
    def pid(self):
        return self.process.pid

    @property
    def said(self):
        return self.stderr.read_text() if self.stderr.exists() else ""

    def wait(self, seconds=60):
        """The exit status; the process is killed if it takes longer."""
        self.process.join(seconds)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
            raise AssertionError(f"hangs: {self.said}")
        return self.process.exitcode


@contextlib.contextmanager
def commands(folder, *words, world_size=None, port=None, **variables):
    """Start a process for each list of words; all that are left at the end are killed."""
    port = free_port() if port is None else port
    shared = {"WORLD_SIZE": world_size or len(words), "MASTER_ADDR": "127.0.0.1"}
    shared |= {"MASTER_PORT": port, "XDG_CACHE_HOME": folder / "cache"} | variables
    ranks = [
        Command(own, folder, {k: str(v) for k, v in (shared | {"RANK": rank}).items()})
        for rank, own in enumerate(words)
        if own is not None
    ]
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.process.kill()
            rank.process.join()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _run(words, stderr, variables):
    file = os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 2)
    os.dup2(file, 1)
    sys.stderr = sys.stdout = os.fdopen(2, "w", buffering=1, closefd=False)
    os.environ |= variables
    os.environ.pop("LOCAL_RANK", None)
    from selfsight import stop_signals
    from selfsight.cli import main

    stop_signals.exit_on_signals()
    main.COMMANDS["exchange"] = exchange
    main.main(words)


def exchange() -> None:
    """Exchange numbers with the other processes, for ever."""
    with dist.process_group("cpu"):
        while True:
            dist.all_sum(torch.ones(3))
            print("exchanged", flush=True)
            time.sleep(0.02)
