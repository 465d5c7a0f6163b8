"""Milliseconds of a piece of work, on a GPU without what it takes to launch it."""

import time
from collections.abc import Callable
from statistics import median

import torch

Work = Callable[[], object]
LEAST = 5  # times a work is timed, however long it takes
WARM = 3


def timed(work: Work, device: torch.device, *, seconds: float) -> float:
    """The median time of a work that is repeated for about so many seconds."""
    if device.type != "cuda":
        return _on_cpu(work, seconds)
    replay = recorded(work)
    began, times = time.perf_counter(), list[float]()
    while len(times) < LEAST or time.perf_counter() - began < seconds:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return median(times)


def recorded(work: Work) -> Work:
    """The work as a CUDA graph, after a few runs in which libraries choose their kernels."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(WARM):
            work()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    graph.replay()
    torch.cuda.synchronize()
    return graph.replay


def _on_cpu(work: Work, seconds: float) -> float:
    work()
    began, times = time.perf_counter(), list[float]()
    while len(times) < LEAST or time.perf_counter() - began < seconds:
        start = time.perf_counter()
        work()
        times.append(1000 * (time.perf_counter() - start))
    return median(times)
