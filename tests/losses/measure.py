"""`python -m tests.losses.measure`: the contrastive loss with its matrix and without, side by side.

With `--swav`, the parts of SwAV's loss, compiled, and its sum over pairs of views as a product of
matrices. Milliseconds of forward and backward; on a GPU also the memory at the peak beyond the
inputs, MiB.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from selfsight.compile_options import COMPILE_OPTIONS
from selfsight.losses import blockwise_contrastive, info_nce
from selfsight.losses.clustering import codes, prototype_scores, swapped_prediction

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
    held = blockwise_contrastive.MAX_BLOCKS
    for name, (blocks, compiled) in WAYS.items():
        blockwise_contrastive.MAX_BLOCKS = blocks
        torch.compiler.reset()
        function = torch.compile(info_nce, **COMPILE_OPTIONS) if compiled else info_nce
        found[name] = spent(lambda use=function: use(q, keys, temperature=0.2), q)  # type: ignore[misc]
    blockwise_contrastive.MAX_BLOCKS = held
    return found


def as_product(scores: Tensor, codes: Tensor, *, temperature: float) -> Tensor:
    """SwAV's swapped prediction with all pairs of views in one product of matrices."""
    log_p = (scores / temperature).log_softmax(-1)
    cross = -torch.einsum("ank,vnk->av", codes, log_p) / scores.shape[1]
    return (cross.sum() - cross.diagonal().sum()) / (len(codes) * (len(scores) - 1))


def measure_swav(images: int, prototypes: int, views: int, width: int) -> dict[str, float]:
    """Milliseconds of each part, forward and backward, of batches with two assigned views."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    z = torch.randn(views, images, width, device=device, requires_grad=True)
    weight = torch.nn.functional.normalize(torch.randn(prototypes, width, device=device), dim=1)
    scores = prototype_scores(z, weight).detach().requires_grad_()
    past, full = weight[:0] @ weight.T, torch.tensor(False, device=device)

    def assign() -> Tensor:
        return torch.stack([codes(s, past, full) for s in scores[:2]])

    targets = assign()
    product = torch.compile(as_product, **COMPILE_OPTIONS) if device == "cuda" else as_product
    parts = {
        "scores": (z, lambda: prototype_scores(z, weight).sum()),
        "codes": (scores, lambda: (assign() * scores[:2]).sum()),
        "prediction": (scores, lambda: swapped_prediction(scores, targets, temperature=0.1)),
        "as a product": (scores, lambda: product(scores, targets, temperature=0.1)),
    }
    return {name: spent(loss, leaf)[0] for name, (leaf, loss) in parts.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--swav", action="store_true")
    parser.add_argument("sizes", type=int, nargs="*", default=[8192, 16384, 32768, 65536])
    parser.add_argument("--width", type=int, default=128)
    given = parser.parse_args()
    if given.swav:
        for shape in ((512, 512, 2), (512, 3000, 8)):
            figures = measure_swav(*shape, given.width).items()
            words = "  ".join(f"{name} {ms:.3f} ms" for name, ms in figures)
            print(f"{shape[0]} images, {shape[1]} prototypes, {shape[2]} views: {words}")
        raise SystemExit
    for rows in given.sizes:
        told = measure(rows, given.width)
        words = "  ".join(f"{name} {ms:.2f} ms {mib:,.0f} MiB" for name, (ms, mib) in told.items())
        print(f"{rows:,} x {given.width}: {words}", flush=True)
