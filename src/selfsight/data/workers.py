"""Decoding in processes of its own, with their results in shared memory.

Threads of one process wait for each other: an image takes a dozen calls, each of which gives the
interpreter up and wants it back, and the thread that drives a GPU is one of those that wait. On 16
cores 16 threads read and decode 2,000 JPEG files of 500 x 375 a second, 16 processes 5,900.
"""

import contextlib
import functools
import math
import mmap
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from selfsight.data.source import Source
from selfsight.data.worker_process import Handed, here

ROOM = 2**28  # bytes of shared memory for a process; what is not written to takes none
SLOTS = 8  # answers that lie there at once
PROGRAM = "import sys; from selfsight.data.worker_process import main; main(sys.argv[1:])"
ALONE = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
PATIENCE = 10.0  # seconds for a process to end
FEW = 4  # cores below which threads hardly get into each other's way
MANY = 2048  # images from which on processes pay: they take a few seconds to start


class Decoders:
    """Processes that decode, each for whichever thread asks.

    Until they have started, and in place of one that has died, the thread that asks decodes.
    """

    def __init__(self, count: int) -> None:
        self.free: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self.count, lines, rooms = count, [socket.socketpair() for _ in range(count)], []
        self.dead: list[_Worker] = []
        self.warned = threading.Lock()  # for good, by the first that warns
        for _ in range(count):
            rooms.append(os.memfd_create("selfsight-pixels"))
            os.ftruncate(rooms[-1], ROOM)
        theirs = [(line.fileno(), room) for (_, line), room in zip(lines, rooms, strict=True)]
        self.started = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *(f"{a}:{b}" for a, b in theirs)],
            pass_fds=[number for pair in theirs for number in pair],
            env=os.environ | ALONE | {"PYTHONPATH": os.pathsep.join(p or "." for p in sys.path)},
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # an interrupt is for us; they end when we hang up
        )
        workers = [
            _Worker(Connection(mine.detach()), mmap.mmap(room, ROOM))
            for (mine, _), room in zip(lines, rooms, strict=True)
        ]
        for (_, line), room in zip(lines, rooms, strict=True):
            line.close()
            os.close(room)
        self.settled = threading.Event()
        waiting = (workers, self.free, self.dead, self.settled)
        threading.Thread(target=_await, args=waiting, daemon=True).start()
        self.close = weakref.finalize(self, _close, workers, self.started)

    def wait(self, seconds: float = 60.0) -> bool:
        """Wait until all have started; whether that many have."""
        return self.settled.wait(seconds) and self.free.qsize() == self.count

    def __call__(
        self, handed: Sequence[Handed], *, store_size: int, channels: int
    ) -> list[np.ndarray | str]:
        """Each image's pixels [C, H, W], or why it has none."""
        how = {"store_size": store_size, "channels": channels}
        with contextlib.suppress(queue.Empty):  # none is free
            worker = self.free.get_nowait()
            try:
                found = worker.ask(list(handed), how)
                self.free.put(worker)
                return found
            except (EOFError, OSError):
                self.dead.append(worker)
        if self.dead and self.warned.acquire(blocking=False):
            left = self.count - len(self.dead)
            warnings.warn(
                f"{len(self.dead)} of the {self.count} processes that decode images ended before "
                f"their time; {left} are left, and threads do the rest, more slowly. Memory may "
                "have run out: see dmesg.",
                stacklevel=2,
            )
        return [here(one, **how) for one in handed]


class _Worker:
    """One process: its line, and the memory that it writes pixels to.

    A slot of that memory is free again when nobody holds an image in it any more.
    """

    def __init__(self, line: Connection, room: mmap.mmap) -> None:
        self.line, self.room = line, memoryview(room)
        self.free: queue.SimpleQueue[int] = queue.SimpleQueue()
        for slot in range(1, SLOTS):  # the first is for answers that are copied
            self.free.put(slot)

    def ask(self, handed: list[Handed], how: dict[str, int]) -> list[np.ndarray | str]:
        try:
            slot = self.free.get_nowait()
        except queue.Empty:
            slot = 0
        size = len(self.room) // SLOTS
        self.line.send((handed, slot * size, size, how))
        told: list[Any] = self.line.recv()
        # An array of its own, which all images in it keep alive.
        block = np.frombuffer(self.room[slot * size : (slot + 1) * size], np.uint8)
        if slot:
            weakref.finalize(block, self.free.put, slot)
        at, out = 0, list[np.ndarray | str]()
        for one in told:
            if isinstance(one, tuple):
                count = math.prod(one)
                pixels = block[at : at + count].reshape(one)
                out.append(pixels if slot else pixels.copy())
                at += count
            else:
                out.append(one)
        return out


def decoders_for(source: Source, count: int, cores: int) -> Decoders | None:
    """For so many images of a source, on so many cores; None where threads do as well."""
    pay = source.stamp is not None and count >= MANY and cores >= FEW
    return shared(cores) if pay and hasattr(os, "memfd_create") else None


@functools.cache
def shared(cores: int) -> Decoders:
    """Those of this process, started when first asked for."""
    return Decoders(cores)


def _await(
    workers: list[_Worker],
    free: "queue.SimpleQueue[_Worker]",
    dead: list[_Worker],
    settled: threading.Event,
) -> None:
    for worker in workers:
        try:
            worker.line.recv()
            free.put(worker)
        except (EOFError, OSError):
            dead.append(worker)
    settled.set()


def _close(workers: list[_Worker], started: "subprocess.Popen[bytes]") -> None:
    for worker in workers:
        worker.line.close()
    try:
        started.wait(PATIENCE)
    except subprocess.TimeoutExpired:  # a disk that does not answer, for one
        os.killpg(started.pid, signal.SIGKILL)
        started.wait()
