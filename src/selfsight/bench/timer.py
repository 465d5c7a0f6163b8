"""Measure time and memory; on a GPU a function is timed as a CUDA graph, without launches."""

import gc
import time
from collections.abc import Callable
from statistics import median

import torch

Function = Callable[[], object]
MIN_REPEATS = 5
WARMUP_RUNS = 3


def median_ms(function: Function, device: torch.device, *, seconds: float) -> float:
    """Repeat a function for about this many seconds; return the median in milliseconds."""
    if device.type == "cuda":
        function = replayed(function)
    else:
        function()
    began, times = time.perf_counter(), list[float]()
    while len(times) < MIN_REPEATS or time.perf_counter() - began < seconds:
        times.append(_ms_on_gpu(function) if device.type == "cuda" else _ms_on_cpu(function))
    return median(times)


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def reset_peak_memory(device: torch.device) -> None:
    """Free cached memory and restart the count of peak memory."""
    gc.collect()
    if device.type == "cuda":
        # Every recorded step has its own stream, and every stream has cuBLAS workspaces.
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> int | None:
    """Most bytes of a GPU that tensors took at a time; None on a CPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def replayed(function: Function) -> Function:
    """Record a function as a CUDA graph, after some runs in which libraries choose kernels."""
    warmup_stream = torch.cuda.Stream()
    warmup_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warmup_stream):
        for _ in range(WARMUP_RUNS):
            function()
    torch.cuda.current_stream().wait_stream(warmup_stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    graph.replay()
    torch.cuda.synchronize()
    return graph.replay


def _ms_on_gpu(function: Function) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    function()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def _ms_on_cpu(function: Function) -> float:
    start = time.perf_counter()
    function()
    return 1000 * (time.perf_counter() - start)
