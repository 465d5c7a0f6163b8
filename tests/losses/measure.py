"""`python -m tests.losses.measure`: the contrastive loss with its matrix and without, side by side.

Milliseconds of forward and backward; on a GPU also the memory at the peak beyond the inputs, MiB.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from selfsight.compile_options import COMPILE_OPTIONS
from selfsight.losses import info_nce, streaming

Loss = Callable[[], Tensor]
LEAST, SECONDS = 5, 1.0
WAYS = {  # blocks that are held whole, and whether the rest is compiled
    "dense": (2**62, False),
    "dense, compiled": (2**62, True),
    "streamed": (0, False),
}


def spent(loss: Loss, q: Tensor) -> tuple[float, float]:
    """Milliseconds, and MiB on a GPU."""
    on_gpu = q.device.type == "cuda"

    def step() -> float:
        q.grad = None
        began = time.perf_counter()
        loss().backward()
        if on_gpu:
            torch.cuda.synchronize()
        return 1000 * (time.perf_counter() - began)

    for _ in range(2):
        step()
    before = torch.cuda.memory_allocated() if on_gpu else 0
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    times: list[float] = []
    while len(times) < LEAST or sum(times) < 1000 * SECONDS:
        times.append(step())
    peak = torch.cuda.max_memory_allocated() if on_gpu else 0
    return statistics.median(times), (peak - before) / 2**20


def measure(size: int, width: int) -> dict[str, tuple[float, float]]:
    """Every way, for so many queries and as many keys."""
    device, found = "cuda" if torch.cuda.is_available() else "cpu", {}
    q, keys = (torch.randn(size, width, device=device) for _ in range(2))
    q.requires_grad_()
    held = streaming.MAX_BLOCKS
    for name, (blocks, compiled) in WAYS.items():
        streaming.MAX_BLOCKS = blocks
        torch.compiler.reset()
        function = torch.compile(info_nce, **COMPILE_OPTIONS) if compiled else info_nce
        found[name] = spent(lambda use=function: use(q, keys, temperature=0.2), q)  # type: ignore[misc]
    streaming.MAX_BLOCKS = held
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("sizes", type=int, nargs="*", default=[8192, 16384, 32768, 65536])
    parser.add_argument("--width", type=int, default=128)
    given = parser.parse_args()
    for rows in given.sizes:
        told = measure(rows, given.width)
        words = "  ".join(f"{name} {ms:.2f} ms {mib:,.0f} MiB" for name, (ms, mib) in told.items())
        print(f"{rows:,} x {given.width}: {words}", flush=True)
