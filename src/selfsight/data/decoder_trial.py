"""Which decoder is faster on some files, found by trying both."""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import numpy as np
import torch

from selfsight.data.decode import decode
from selfsight.data.decode_threads import own_workers, quiet
from selfsight.data.jpeg_header import jpeg
from selfsight.data.nvjpeg import decode_batch
from selfsight.data.source import Source
from selfsight.data.workers import Decoders, decoders_for
from selfsight.progress import DelayedProgress

Decoder = Literal["auto", "cpu", "nvjpeg"]
SHORT = 10.0  # seconds of decoding that are not worth a choice
TASK = 4  # images that a thread or process is given at once
PRODUCT = 4096  # rows of the matrices that keep a GPU busy
FASTER = 1.1  # how much the GPU must win by
BESIDE = 1.5  # and beside training, which is slower by what it takes of the GPU


def faster(
    source: Source,
    files: list[bytes | np.ndarray],
    keep: str,
    store_size: int,
    channels: int,
    device: torch.device,
) -> tuple[Decoder, str]:
    """The decoder that is faster on these files, and the figures."""
    good = [file for file in files if isinstance(file, bytes) and jpeg(file)]
    if device.type != "cuda" or channels == 4 or 2 * len(good) < len(files) or not good:
        return "cpu", ""
    settings, count = {"store_size": store_size, "channels": channels}, len(source)
    with quiet(), DelayedProgress("trying decoders", 2) as bar:
        cpu = _cpu_rate(good, None, **settings)
        if keep == "pixels" and count / cpu < SHORT:
            return "cpu", ""
        bar.advance()
        if (processes := decoders_for(source, count, own_workers())) and processes.wait():
            cpu = _cpu_rate(good, processes, **settings)
        bar.advance()

    def on_gpu() -> None:
        with torch.cuda.stream(aside):
            decode_batch(good, device=device, **settings)
        aside.synchronize()

    aside = torch.cuda.Stream(device)
    with _busy(device) if keep == "stream" else contextlib.nullcontext():
        gpu = _rate(on_gpu, len(good))
    beside = " beside a busy GPU" if keep == "stream" else ""
    told = f"Measured: {cpu:,.0f} images/s on the CPU, {gpu:,.0f} with nvJPEG{beside}."
    return better(cpu, gpu, streamed=keep == "stream"), told


def better(cpu: float, gpu: float, *, streamed: bool) -> Decoder:
    """The decoder to take, at these images a second on either."""
    return "nvjpeg" if gpu > (BESIDE if streamed else FASTER) * cpu else "cpu"


def _cpu_rate(files: list[bytes], processes: Decoders | None, **settings: int) -> float:
    """Images a second, in threads or in processes for which these wait."""
    threads = own_workers()
    tasks = [files[i : i + TASK] for i in range(0, len(files), TASK)]
    tasks *= max(1, threads // 8)  # two for every thread

    def some(files: list[bytes]) -> None:
        if processes is not None:
            processes(files, **settings)
        else:
            for file in files:
                decode(file, **settings)

    with ThreadPoolExecutor(threads) as pool:
        return _rate(lambda: list(pool.map(some, tasks)), sum(map(len, tasks)))


@contextlib.contextmanager
def _busy(device: torch.device) -> Iterator[None]:
    """With a GPU that has other work, as in training: nvJPEG's many small kernels wait their turn.

    They wait the longer, the longer its kernels are. Of files of 500 x 375 an H200 decodes 14,000 a
    second, 4,100 beside these products (600 beside some of 8,192 rows), and while a ResNet-50
    trains 2,700 to 3,600.
    """
    x = torch.ones(PRODUCT, PRODUCT, dtype=torch.float16, device=device)
    y, done = torch.empty_like(x), threading.Event()

    def work() -> None:
        torch.cuda.set_device(device)
        with torch.cuda.stream(torch.cuda.Stream(device)):
            marks: deque[torch.cuda.Event] = deque()
            while not done.is_set():
                for _ in range(8):
                    torch.mm(x, x, out=y)
                marks.append(torch.cuda.current_stream().record_event())
                if len(marks) > 2:  # one lot is always waiting behind the one that runs
                    marks.popleft().synchronize()

    other = threading.Thread(target=work)
    other.start()
    try:
        yield
    finally:
        done.set()
        other.join()


def _rate(work: Callable[[], object], count: int) -> float:
    """Images a second, once everything is warm."""
    work()
    begun = time.perf_counter()
    work()
    return count / (time.perf_counter() - begun)
