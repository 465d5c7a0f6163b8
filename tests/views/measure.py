"""`python -m tests.views.measure`: views by torch's operations and by the fused kernels.

Milliseconds for all views of a batch whose pixels lie on the device; on a GPU the kernels are a
CUDA graph, as in training.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from selfsight.bench.timer import MIN_REPEATS, WARMUP_RUNS, median_ms
from selfsight.ragged_batch import Ragged
from selfsight.views import PRESETS, apply_views, apply_views_reference, without_blur

SHAPES = ((256, 341), (256, 341), (341, 256), (256, 384), (300, 256), (256, 256))  # as stored


def images(count: int, size: int, device: torch.device) -> Ragged:
    """Random pixels: photographs with a short side of 256, or images of the views' own size."""
    shapes = [SHAPES[i % len(SHAPES)] if size > 64 else (size, size) for i in range(count)]
    sizes = torch.tensor(shapes)
    room = 3 * sizes.prod(1)
    made = torch.Generator().manual_seed(0)
    flat = torch.randint(0, 256, (int(room.sum()),), generator=made, dtype=torch.uint8)
    largest = (int(sizes[:, 0].max()), int(sizes[:, 1].max()))
    return Ragged(flat, room.cumsum(0) - room, sizes, 3, largest).to(device)


def measure(preset: str, size: int, count: int, seconds: float) -> dict[str, float]:
    """Every way of making the views."""
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    views = PRESETS[preset](size)
    views = without_blur(views) if size <= 64 else views
    given, index = images(count, size, device), torch.arange(count, device=device)
    found = {}
    for dtype in (torch.bfloat16, torch.float32):
        name = f"as training makes them, {str(dtype).removeprefix('torch.')}"
        found[name] = median_ms(
            lambda dtype=dtype: apply_views(views, given, index, seed=0, epoch=0, dtype=dtype),  # type: ignore[misc]
            device,
            seconds=seconds,
        )
    pixels = given.padded()
    found["torch's operations"] = _plainly(
        lambda: apply_views_reference(views, pixels, given.sizes, index, seed=0, epoch=0), device
    )
    return found


def _plainly(work: Callable[[], object], device: torch.device) -> float:
    """Milliseconds without a graph, as many small operations are launched."""
    times = []
    for _ in range(WARMUP_RUNS + MIN_REPEATS):
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times[WARMUP_RUNS:])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("preset", nargs="?", default="moco_v3", choices=sorted(PRESETS))
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--count", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=1.0)
    told = parser.parse_args()
    for way, ms in measure(told.preset, told.size, told.count, told.seconds).items():
        print(f"{told.preset} {told.count} x {told.size} px, {way}: {ms:.3f} ms", flush=True)
