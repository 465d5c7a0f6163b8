"""Decode images in worker processes that return pixels in shared memory, or in threads.

Threads of one process wait for each other: decoding an image makes a dozen calls that each release
and reacquire the interpreter's lock, and the thread that drives a GPU waits as well.
On 16 cores 16 threads read and decode 2,000 JPEG files of 500 x 375 a second, 16 processes 5,900.
"""

import contextlib
import gc
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
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from PIL import Image

from selfsight.data.cgroup_limits import available_cpus
from selfsight.data.decoders.decode_image import Crop, Decoded, Encoded, try_decode, try_read
from selfsight.data.decoders.nvjpeg import decode_with_nvjpeg
from selfsight.data.decoders.pillow_formats import ignore_pillow_warnings, pillow_warnings_ignored
from selfsight.data.decoders.png import load_image_library
from selfsight.data.sources.remote_files import read_file
from selfsight.data.sources.source import Source
from selfsight.terminal.progress import DelayedProgress

Request = str | Encoded  # the path of a file, its content, or pixels that need no decoding

CHUNK = 64  # images per task of `decode_images`
SHARED_BYTES = 2**28  # shared memory of a worker; pages that are never written take none
SLOTS = 8  # results that fit in the shared memory of a worker at once
PROGRAM = f"import sys; from {__name__} import serve_all; serve_all(sys.argv[1:])"
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
STOP_TIMEOUT = 10.0  # seconds for the workers to end
MIN_CORES = 4  # with fewer, threads hardly slow each other down
MIN_IMAGES = 2048  # with fewer, starting processes takes longer than they save
NICENESS = 5  # of workers: the thread that drives a GPU goes first


def decode_images(
    source: Source,
    index: Sequence[int],
    *,
    channels: int,
    dtype: str = "uint8",
    store_size: int | None = None,
    crop: Crop | None = None,
    decoder: str = "cpu",
    workers: int | None = None,
    processes: "DecodeProcesses | None" = None,
    progress: bool = False,
) -> Iterator[Decoded]:
    """Yield the decoded images in the order of `index`; only a few are in memory at once.

    They have a short side of at most `store_size`, or are what `crop` gives for full-size pixels.
    Threads, `workers` of them, read. Processes decode: those given, or new ones if there are many
    images and `workers` is not given. Otherwise the same threads decode.
    """
    cores = available_cpus()
    start_new = processes is None and decoder == "cpu" and workers is None
    workers = cores if workers is None else max(1, workers)
    settings: dict[str, Any] = dict(
        store_size=store_size, channels=channels, dtype=dtype, crop=crop
    )
    with contextlib.ExitStack() as stack:
        if start_new and (new := start_processes(source, len(index), cores)):
            processes = new
            stack.callback(new.close)

        def decode_chunk(numbers: Sequence[int]) -> list[Decoded]:
            if processes is None:
                return [try_decode(lambda i=i: source.read(i), **settings) for i in numbers]  # type: ignore[misc]
            if source.local_path is not None:
                return processes.decode([source.local_path(i) for i in numbers], **settings)
            files = read_chunk(numbers)
            pixels = iter(
                processes.decode([f for f in files if not isinstance(f, str)], **settings)
            )
            return [f if isinstance(f, str) else next(pixels) for f in files]

        def read_chunk(numbers: Sequence[int]) -> list[Encoded | str]:
            return [try_read(source.read, i) for i in numbers]

        def next_chunk() -> list[Decoded]:
            chunk = running.popleft().result()
            bar.advance(len(chunk))
            if decoder == "cpu":
                return chunk
            assert store_size is not None and crop is None
            decoded = decode_with_nvjpeg(
                chunk, store_size=store_size, channels=channels, device="cuda"
            )
            return [x if isinstance(x, str) else x.cpu().numpy() for x in decoded]

        task: Callable[[Sequence[int]], list[Any]]
        task = decode_chunk if decoder == "cpu" else read_chunk
        running: deque[Future[list[Any]]] = deque()
        threads = ThreadPoolExecutor(workers, thread_name_prefix="decode")
        stack.callback(threads.shutdown, cancel_futures=True)
        stack.enter_context(pillow_warnings_ignored())
        title = f"decoding {source.name}" if progress else None
        bar = stack.enter_context(DelayedProgress(title, len(index)))
        for start in range(0, len(index), CHUNK):
            running.append(threads.submit(task, index[start : start + CHUNK]))
            if len(running) > 2 * workers:
                yield from next_chunk()
        while running:
            yield from next_chunk()


def start_processes(source: Source, count: int, cores: int) -> "DecodeProcesses | None":
    """Start one process per core to decode `count` images; None where threads are as fast."""
    is_encoded = source.fingerprint is not None and not source.is_decoded
    worthwhile = is_encoded and count >= MIN_IMAGES and cores >= MIN_CORES
    return DecodeProcesses(cores) if worthwhile and hasattr(os, "memfd_create") else None


def inherited_path() -> dict[str, str]:
    """Environment variable that lets another Python import from where this one does."""
    return {"PYTHONPATH": os.pathsep.join(p or "." for p in sys.path)}


class DecodeProcesses:
    """Worker processes that decode; any thread may call `decode`.

    Until they have started, and in place of one that has died, the calling thread decodes. They
    end with `close`, with this object, or with this process.
    """

    def __init__(self, count: int) -> None:
        self.idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self.count, pipes, buffers = count, [socket.socketpair() for _ in range(count)], []
        self.dead: list[_Worker] = []
        self.warned = threading.Lock()  # acquired for good by the first thread that warns
        for _ in range(count):
            buffers.append(os.memfd_create("selfsight-pixels"))
            os.ftruncate(buffers[-1], SHARED_BYTES)
        handles = [(pipe.fileno(), fd) for (_, pipe), fd in zip(pipes, buffers, strict=True)]
        self.parent = subprocess.Popen(
            # -P: import nothing from the current folder, which may hold untrusted files.
            [sys.executable, "-P", "-c", PROGRAM, *(f"{pipe}:{fd}" for pipe, fd in handles)],
            pass_fds=[handle for pair in handles for handle in pair],
            env=os.environ | ONE_THREAD | inherited_path(),
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C must not reach them; they end when the pipe closes
        )
        workers = [
            _Worker(Connection(pipe.detach()), mmap.mmap(fd, SHARED_BYTES))
            for (pipe, _), fd in zip(pipes, buffers, strict=True)
        ]
        for (_, pipe), fd in zip(pipes, buffers, strict=True):
            pipe.close()
            os.close(fd)
        self.started = threading.Event()
        arguments = (workers, self.idle, self.dead, self.started)
        threading.Thread(target=_await_start, args=arguments, daemon=True).start()
        self.close = weakref.finalize(self, _stop, workers, self.parent)

    def wait(self, seconds: float = 60.0) -> bool:
        """Wait until the processes have started; return whether all of them have."""
        return self.started.wait(seconds) and self.idle.qsize() == self.count

    def decode(self, requests: Sequence[Request], **settings: Any) -> list[Decoded]:
        """Decode each image as `try_decode` does by these settings."""
        with contextlib.suppress(queue.Empty):  # no worker is idle
            worker = self.idle.get_nowait()
            try:
                decoded = worker.decode(list(requests), settings)
                self.idle.put(worker)
                return decoded
            except (EOFError, OSError):
                self.dead.append(worker)
        if self.dead and self.warned.acquire(blocking=False):
            warnings.warn(
                f"{len(self.dead)} of the {self.count} processes that decode images ended "
                f"unexpectedly; {self.count - len(self.dead)} are left, and slower threads "
                "replace the others. Memory may have run out: see dmesg.",
                stacklevel=2,
            )
        return [_read_and_decode(request, **settings) for request in requests]


class _Worker:
    """One worker process as its parent sees it: a connection, and its shared memory.

    A slot of that memory is free again when no image in it is referenced any more.
    """

    def __init__(self, connection: Connection, shared: mmap.mmap) -> None:
        self.connection, self.shared = connection, memoryview(shared)
        self.free_slots: queue.SimpleQueue[int] = queue.SimpleQueue()
        for slot in range(1, SLOTS):  # slot 0 is for results that are copied
            self.free_slots.put(slot)

    def decode(self, requests: list[Request], settings: dict[str, Any]) -> list[Decoded]:
        try:
            slot = self.free_slots.get_nowait()
        except queue.Empty:
            slot = 0
        size = len(self.shared) // SLOTS
        self.connection.send((requests, slot * size, size, settings))
        replies: list[Any] = self.connection.recv()
        # A new array, which every image in it keeps alive.
        block = np.frombuffer(self.shared[slot * size : (slot + 1) * size], np.uint8)
        if slot:
            weakref.finalize(block, self.free_slots.put, slot)
        at, out, dtype = 0, list[Decoded](), np.dtype(settings.get("dtype", "uint8"))
        for reply in replies:
            if isinstance(reply, tuple):  # the shape of pixels in shared memory
                count = math.prod(reply) * dtype.itemsize
                pixels = block[at : at + count].view(dtype).reshape(reply)
                out.append(pixels if slot else pixels.copy())
                at += count
            else:
                out.append(reply)
        return out


def _await_start(
    workers: list[_Worker],
    idle: "queue.SimpleQueue[_Worker]",
    dead: list[_Worker],
    started: threading.Event,
) -> None:
    for worker in workers:
        try:
            worker.connection.recv()
            idle.put(worker)
        except (EOFError, OSError, TypeError):  # TypeError: closed here while it was waiting
            dead.append(worker)
    started.set()


def _stop(workers: list[_Worker], parent: "subprocess.Popen[bytes]") -> None:
    for worker in workers:
        worker.connection.close()
    try:
        parent.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:  # for example a disk that does not answer
        os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()


def serve_all(pairs: list[str]) -> None:
    """Fork one worker for each PIPE:MEMORY pair of file descriptors, and wait for all to end."""
    # Import here what decoding the first image would import: once, in memory that all share.
    load_image_library()
    Image.init()
    handles = [tuple(map(int, pair.split(":"))) for pair in pairs]
    torch.set_num_threads(1)
    ignore_pillow_warnings()
    os.nice(NICENESS)
    gc.freeze()  # a collection would write to the memory that they share
    for pipe, shared in handles:
        if os.fork() == 0:
            for other, _ in handles:  # else the end of another worker would not be noticed
                if other != pipe:
                    os.close(other)
            _serve(Connection(pipe), shared)
            os._exit(0)
    for pipe, _ in handles:
        os.close(pipe)
    for _ in handles:
        os.wait()
    os._exit(0)  # torch's clean-up would take a second


def _serve(connection: Connection, shared_memory: int) -> None:
    """Answer requests until the other side closes the connection."""
    shared = np.frombuffer(mmap.mmap(shared_memory, 0), np.uint8)
    try:
        connection.send("ready")
        while True:
            requests, start, size, settings = connection.recv()
            connection.send(_reply(requests, shared[start : start + size], **settings))
    except (EOFError, OSError):
        return


def _reply(requests: list[Request], shared: np.ndarray, **settings: Any) -> list[Any]:
    """For each image: the shape of its pixels in shared memory, its pixels, or the reason."""
    replies: list[Any] = []
    at = 0
    for request in requests:
        pixels = _read_and_decode(request, **settings)
        if not isinstance(pixels, str) and at + pixels.nbytes <= len(shared):
            block = shared[at : at + pixels.nbytes].view(pixels.dtype)
            block.reshape(pixels.shape)[:] = pixels
            at += pixels.nbytes
            replies.append(pixels.shape)
        else:
            replies.append(pixels)
    return replies


def _read_and_decode(request: Request, **settings: Any) -> Decoded:
    return try_decode(
        lambda: read_file(request) if isinstance(request, str) else request, **settings
    )
