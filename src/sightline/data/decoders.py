"""Decoding in processes of its own, with their results in shared memory.

Threads of one process wait for each other: a picture takes a dozen calls, each of which gives the
interpreter up and wants it back, and the thread that drives a GPU is one of those that wait. On 16
cores 16 threads read and decode 2,000 JPEG files of 500 x 375 a second, 16 processes 5,900.
"""

import functools
import mmap
import os
import queue
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from sightline.data.decoding import Handed, here
from sightline.data.source import Source
from sightline.data.threads import num_workers

ROOM = 2**26  # bytes of shared memory for a process; what is not written to takes none
PROGRAM = "import sys; from sightline.data.decoding import main; main(sys.argv[1:])"
FEW = 4  # cores below which threads hardly get into each other's way
MANY = 2048  # pictures from which on processes pay: they take a few seconds to start


class Decoders:
    """Processes that decode, each for whichever thread asks.

    Until they have started, and in place of one that has died, the thread that asks decodes.
    """

    def __init__(self, count: int) -> None:
        self.free: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self.count, lines, rooms = count, [socket.socketpair() for _ in range(count)], []
        for _ in range(count):
            rooms.append(os.memfd_create("sightline-pixels"))
            os.ftruncate(rooms[-1], ROOM)
        theirs = [(line.fileno(), room) for (_, line), room in zip(lines, rooms, strict=True)]
        self.started = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *(f"{a}:{b}" for a, b in theirs)],
            pass_fds=[number for pair in theirs for number in pair],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            start_new_session=True,  # an interrupt is for us; they end when we hang up
        )
        workers = [
            _Worker(Connection(mine.detach()), np.frombuffer(mmap.mmap(room, ROOM), np.uint8))
            for (mine, _), room in zip(lines, rooms, strict=True)
        ]
        for (_, line), room in zip(lines, rooms, strict=True):
            line.close()
            os.close(room)
        self.settled = threading.Event()
        waiting = (workers, self.free, self.settled)
        threading.Thread(target=_await, args=waiting, daemon=True).start()
        self.close = weakref.finalize(self, _close, workers, self.started)

    def wait(self, seconds: float = 60.0) -> bool:
        """Wait until all have started; whether that many have."""
        return self.settled.wait(seconds) and self.free.qsize() == self.count

    def __call__(
        self, handed: Sequence[Handed], *, store_size: int, channels: int
    ) -> list[np.ndarray | str]:
        """Each picture's pixels [C, H, W], or why it has none."""
        how = {"store_size": store_size, "channels": channels}
        try:
            worker = self.free.get_nowait()
        except queue.Empty:
            return [here(one, **how) for one in handed]
        try:
            found = worker.ask(list(handed), how)
        except (EOFError, OSError):  # it has died, perhaps of one of these
            return [here(one, **how) for one in handed]
        self.free.put(worker)
        return found


class _Worker:
    """One process: its line, and the memory that it writes pixels to."""

    def __init__(self, line: Connection, room: np.ndarray) -> None:
        self.line, self.room = line, room

    def ask(self, handed: list[Handed], how: dict[str, int]) -> list[np.ndarray | str]:
        self.line.send((handed, how))
        told: list[Any] = self.line.recv()
        shapes = [one for one in told if isinstance(one, tuple)]
        ends = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes)])
        pixels = self.room[: ends[-1]].copy()  # all of them at once: the room is needed again
        parts = iter(
            pixels[a:b].reshape(shape)
            for a, b, shape in zip(ends[:-1], ends[1:], shapes, strict=True)
        )
        return [next(parts) if isinstance(one, tuple) else one for one in told]


def decoders_for(source: Source, count: int) -> Decoders | None:
    """Those of this process, for so many pictures of a source; None where threads do as well."""
    return shared() if source.stamp is not None and count >= MANY else None


@functools.cache
def shared() -> Decoders | None:
    """Started when first asked for; None with few cores, or where memory is shared otherwise."""
    cores = num_workers() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return Decoders(cores) if cores >= FEW and hasattr(os, "memfd_create") else None


def _await(
    workers: list[_Worker], free: "queue.SimpleQueue[_Worker]", settled: threading.Event
) -> None:
    for worker in workers:
        try:
            worker.line.recv()
            free.put(worker)
        except (EOFError, OSError):
            continue
    settled.set()


def _close(workers: list[_Worker], started: "subprocess.Popen[bytes]") -> None:
    for worker in workers:
        worker.line.close()
    started.wait()
