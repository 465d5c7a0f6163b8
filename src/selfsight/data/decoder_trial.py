"""Choose the faster decoder by trying both on some files of the data set."""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import torch

from selfsight.data.cgroup_limits import cpus_per_process
from selfsight.data.decode import Encoded, decode, pillow_warnings_ignored, read_jpeg_header
from selfsight.data.nvjpeg import decode_batch
from selfsight.data.sources.source import Source
from selfsight.data.workers import DecodeProcesses, start_processes
from selfsight.progress import DelayedProgress

Decoder = Literal["auto", "cpu", "nvjpeg"]
SHORT = 10.0  # seconds of decoding that are not worth a trial
TASK = 4  # images per task of a thread or process
MATRIX = 4096  # rows of the matrices whose product keeps a GPU busy
CACHE_MARGIN = 1.1  # by which the GPU must win when a cache is filled
STREAM_MARGIN = 1.5  # and while it also trains, which decoding slows down


def choose_decoder(
    source: Source,
    files: list[Encoded],
    storage: str,
    store_size: int,
    channels: int,
    device: torch.device,
) -> tuple[Decoder, str]:
    """The decoder that is faster on these files, and the measured speeds as a sentence."""
    jpegs = [file for file in files if isinstance(file, bytes) and read_jpeg_header(file)]
    if device.type != "cuda" or channels == 4 or 2 * len(jpegs) < len(files) or not jpegs:
        return "cpu", ""
    settings, count = {"store_size": store_size, "channels": channels}, len(source)
    with pillow_warnings_ignored(), DelayedProgress("trying decoders", 2) as bar:
        cpu = _cpu_speed(jpegs, None, **settings)
        if storage == "cache" and count / cpu < SHORT:
            return "cpu", ""
        bar.advance()
        if processes := start_processes(source, count, cpus_per_process()):
            if processes.wait():
                cpu = _cpu_speed(jpegs, processes, **settings)
            processes.close()
        bar.advance()

    def decode_on_gpu() -> None:
        with torch.cuda.stream(stream):
            decode_batch(jpegs, device=device, **settings)
        stream.synchronize()

    stream = torch.cuda.Stream(device)
    with _busy_gpu(device) if storage == "stream" else contextlib.nullcontext():
        gpu = _images_per_second(decode_on_gpu, len(jpegs))
    load = " on a busy GPU" if storage == "stream" else ""
    reason = f"Measured: {cpu:,.0f} images/s on the CPU, {gpu:,.0f} with nvJPEG{load}."
    return faster_decoder(cpu, gpu, streamed=storage == "stream"), reason


def faster_decoder(cpu: float, gpu: float, *, streamed: bool) -> Decoder:
    """The decoder to use, given the images per second of both."""
    return "nvjpeg" if gpu > (STREAM_MARGIN if streamed else CACHE_MARGIN) * cpu else "cpu"


def _cpu_speed(files: list[bytes], processes: DecodeProcesses | None, **settings: int) -> float:
    """Images per second, in threads or in processes."""
    threads = cpus_per_process()
    tasks = [files[i : i + TASK] for i in range(0, len(files), TASK)]
    tasks *= max(1, threads // 8)  # two for every thread

    def decode_files(files: list[bytes]) -> None:
        if processes is not None:
            processes.decode(files, **settings)
        else:
            for file in files:
                decode(file, **settings)

    with ThreadPoolExecutor(threads) as pool:
        return _images_per_second(lambda: list(pool.map(decode_files, tasks)), sum(map(len, tasks)))


@contextlib.contextmanager
def _busy_gpu(device: torch.device) -> Iterator[None]:
    """Keep the GPU busy, as training does: nvJPEG's many small kernels then have to wait.

    The longer the other kernels, the longer they wait. An H200 decodes 14,000 files of 500 x 375 a
    second, 4,100 beside these products (600 beside products of 8,192 rows), and 2,700 to 3,600
    while a ResNet-50 trains.
    """
    x = torch.ones(MATRIX, MATRIX, dtype=torch.float16, device=device)
    y, done = torch.empty_like(x), threading.Event()

    def work() -> None:
        torch.cuda.set_device(device)
        with torch.cuda.stream(torch.cuda.Stream(device)):
            events: deque[torch.cuda.Event] = deque()
            while not done.is_set():
                for _ in range(8):
                    torch.mm(x, x, out=y)
                events.append(torch.cuda.current_stream().record_event())
                if len(events) > 2:  # keep one group of products queued behind the running one
                    events.popleft().synchronize()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _images_per_second(work: Callable[[], object], count: int) -> float:
    """Images per second of the second call: the first one warms up."""
    work()
    began = time.perf_counter()
    work()
    return count / (time.perf_counter() - began)
