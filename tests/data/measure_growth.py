"""`python -m tests.data.measure_growth 1000000`: time and memory to begin with very many files.

Writes so many names, links to a few small images, into folders of a thousand, and removes them at
the end. Prints seconds, those of the processor, and the memory at the peak after each part, and how
many images were read.
"""

import argparse
import os
import resource
import shutil
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import torch
from PIL import Image

from selfsight.data import open_images, open_source, plan_storage
from selfsight.data.fingerprint import fingerprint_data
from selfsight.data.loader import Loader

PER_FOLDER, PER_FILE = 1000, 50_000  # names in a folder, and links to an image
STORED = {"store_size": 32, "channels": 3}
BATCH = 256
CPU = torch.device("cpu")


def write_names(folder: Path, count: int) -> None:
    """Write `count` names of images."""
    images = []
    for i in range(-(-count // PER_FILE)):
        path = folder.parent / f"image_{i}.png"
        Image.new("RGB", (8, 8)).save(path)
        images.append(path)
    for i in range(count):
        if i % PER_FOLDER == 0:
            inside = folder / f"{i // PER_FOLDER:05}"
            inside.mkdir(parents=True)
        os.link(images[i // PER_FILE], f"{inside}/photo_{i:010}.png")


class Measurement:
    """Seconds of each part, and the memory after it."""

    def __init__(self) -> None:
        self.before, self.last, self.cpu = self.peak(), time.perf_counter(), time.process_time()

    def peak(self) -> float:
        """MiB at the peak of this process."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    def part(self, name: str) -> None:
        """Print and restart."""
        seconds, cpu = time.perf_counter() - self.last, time.process_time() - self.cpu
        memory = self.peak() - self.before
        print(f"{name:<38}{seconds:8.1f} s{cpu:8.1f} s of CPU{memory:9,.0f} MiB", flush=True)
        self.last, self.cpu = time.perf_counter(), time.process_time()


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int, nargs="?", default=1_000_000)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="selfsight-growth-", dir=given.folder))
    try:
        write_names(root / "names", given.count)
        measured, read = Measurement(), Counter[int]()
        for name in ("begin", "resume"):
            source = open_source(root / "names")
            measured.part(f"{name}: list {len(source):,} names")
            content = source.read
            source = replace(source, read=lambda i, of=content: (read.update([i]), of(i))[1])
            plan = plan_storage(source, storage="auto", decoder="auto", device=CPU, **STORED)
            measured.part(f"{name}: plan the storage ({plan.storage})")
            fingerprint_data(source)
            measured.part(f"{name}: fingerprint")
            images = open_images(source, storage="stream", decoder="cpu", device=CPU, **STORED)
            loader = Loader(images, batch_size=BATCH, seed=0, rank=0, world_size=1, device=CPU)
            step = 0 if name == "begin" else loader.steps_per_epoch // 2
            next(loader.batches(step))
            measured.part(f"{name}: first batch, of step {step}")
        most = max(read.values())
        print(f"{len(read)} of {given.count:,} images were read here, none over {most} times.")
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
