"""`python -m tests.data.measure_growth 1000000`: time and memory to begin with very many files.

Writes so many names, links to a few small images, into folders of a thousand, and removes them at
the end. With --fake the names exist in this process alone: what lists folders, looks at files and
reads them answers from memory, which needs no file system, and leaves its time out. Prints seconds,
those of the processor, and the memory at the peak after each part, and how many images were read.
"""

import argparse
import contextlib
import io
import os
import resource
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from selfsight.data import open_images, open_source, plan_storage
from selfsight.data.data_fingerprint import fingerprint_data
from selfsight.data.loader import Loader
from selfsight.data.sources.remote_files import File
from selfsight.data.storage_plan import StorageSettings

PER_FOLDER, PER_FILE = 1000, 50_000  # names in a folder, and links to an image
STORED = StorageSettings(store_size=32, channels=3)
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


class FakeEntry:
    """An entry of a folder that does not exist."""

    def __init__(self, name: str, folder: bool) -> None:
        self.name, self.folder = name, folder

    def is_dir(self) -> bool:
        """Whether it is a folder."""
        return self.folder


@contextlib.contextmanager
def fake_names(folder: Path, count: int) -> Iterator[None]:
    """Let a folder seem to hold `count` names of images, for os.scandir, os.stat and File.read."""
    folder.mkdir()
    prefix, status = f"{folder}{os.sep}", os.stat(folder)
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "png")
    file = os.stat_result((0o100644, 1, status.st_dev, 1, 0, 0, buffer.tell(), 0, 0, 0))
    numbers = {f"{k:05}": k for k in range(-(-count // PER_FOLDER))}

    def scan(path: str) -> Any:
        inside = str(path).removeprefix(prefix).rstrip(os.sep)
        if inside in numbers:
            first = numbers[inside] * PER_FOLDER
            names = range(first, min(first + PER_FOLDER, count))
            return contextlib.nullcontext(FakeEntry(f"photo_{i:010}.png", False) for i in names)
        return contextlib.nullcontext(FakeEntry(name, True) for name in numbers)

    def stat(path: Any, **_: Any) -> os.stat_result:
        inside = str(path).removeprefix(prefix).rstrip(os.sep)
        if inside in numbers:
            return os.stat_result((0o40755, numbers[inside] + 10**9, status.st_dev, *([0] * 7)))
        return file if inside.endswith(".png") else real_stat(path)

    real_stat, real_scan, real_read = os.stat, os.scandir, File.read
    try:
        os.stat, os.scandir, File.read = stat, scan, lambda _: buffer.getvalue()
        yield
    finally:
        os.stat, os.scandir, File.read = real_stat, real_scan, real_read


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
    parser.add_argument("--fake", action="store_true")
    given = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="selfsight-growth-", dir=given.folder))
    try:
        if given.fake:
            with fake_names(root / "names", given.count):
                measure(root / "names")
        else:
            write_names(root / "names", given.count)
            measure(root / "names")
    finally:
        shutil.rmtree(root)


def measure(folder: Path) -> None:
    """Begin and resume, and print what each part takes."""
    measured, read, storage = Measurement(), Counter[int](), "auto"
    for name in ("begin", "resume"):
        source = open_source(folder)
        measured.part(f"{name}: list {len(source):,} names")
        content = source.read
        source = replace(source, read=lambda i, of=content: (read.update([i]), of(i))[1])
        storage = plan_storage(source, replace(STORED, storage=storage), CPU).storage
        measured.part(f"{name}: plan the storage ({storage})")
        if storage == "cache":
            source.fingerprint()
            measured.part(f"{name}: look at every file, for a cache")
        fingerprint_data(source)
        measured.part(f"{name}: fingerprint")
        images = open_images(source, replace(STORED, storage="stream", decoder="cpu"), CPU)
        loader = Loader(images, batch_size=BATCH, seed=0, rank=0, world_size=1, device=CPU)
        step = 0 if name == "begin" else loader.steps_per_epoch // 2
        next(loader.batches(step))
        measured.part(f"{name}: first batch, of step {step}")
    most = max(read.values())
    print(f"{len(read)} of {len(source):,} images were read here, none over {most} times.")


if __name__ == "__main__":
    main()
