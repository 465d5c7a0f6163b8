"""Measure what a long run holds: `python -m tests.train.long_run --steps 10000`.

Memory, open descriptors, threads and child processes while a small SimCLR trains on the CPU from a
stream of JPEG files, with logs and checkpoints.
"""

import argparse
import gc
import os
import tempfile
from pathlib import Path

import torch

from selfsight.backbones import BackboneConfig
from selfsight.data import open_images, open_source
from selfsight.data.storage_plan import StorageSettings
from selfsight.methods.simclr import SimCLRConfig
from selfsight.optim import Optim, Schedule
from selfsight.recipe import Data, Recipe
from selfsight.run_files.json_files import write_json
from selfsight.run_files.run_folder import Run
from selfsight.terminal.console import open_console
from selfsight.train.pretrain import pretrain
from selfsight.views import View
from tests.folders import images
from tests.methods.small import Tiny

COUNT, BATCH, SIZE = 64, 8, 16


def build_tiny(**_):
    """Build two layers, with batch norm."""
    return Tiny()


def measure():
    """Memory in MB, descriptors, threads and children of this process."""
    gc.collect()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    tasks = Path("/proc/self/task").glob("*/children")
    children = sum(len(task.read_text().split()) for task in tasks)
    memory = int(status["VmRSS"].split()[0]) / 1000
    threads = int(status["Threads"])
    return {
        "memory_mb": round(memory, 1),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threads,
        "children": children,
    }


def train(folder, steps, every):
    """Train so many steps; return a measurement of every `every` steps, and the run."""
    photos = images(folder / "photos", count=COUNT)
    recipe = Recipe(
        method=SimCLRConfig(dim=8, hidden_dim=16),
        views=(View(size=SIZE),) * 2,
        optim=Optim(lr=0.01, schedule=Schedule()),
        backbone=BackboneConfig(name=f"{__package__}.long_run:build_tiny", image_size=SIZE),
        data=Data(path=str(photos), store_size=32, storage="stream", decoder="cpu"),
        epochs=-(-steps * BATCH // COUNT),
        batch_size=BATCH,
        save_every=max(1, every * BATCH // COUNT),
        compile=False,
    )
    rows = []

    class Watched(Run):
        def log(self, record):
            super().log(record)
            if record["step"] % every == 0:
                rows.append({"step": record["step"], **measure()})
                print("| " + " | ".join(f"{v:,}" for v in rows[-1].values()) + " |", flush=True)

    run = Watched(folder / "run")
    write_json(run.recipe_path, {})
    store = open_images(
        open_source(photos),
        StorageSettings(storage="stream", decoder="cpu", store_size=32, channels=3),
        torch.device("cpu"),
    )
    pretrain(
        recipe,
        run,
        store,
        torch.device("cpu"),
        knn=None,
        console=open_console(quiet=True),
        until=steps,
    )
    return rows, run


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10_000)
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as name:
        _, run = train(Path(name), steps, max(10, steps // 10))
        size = sum(path.stat().st_size for path in run.path.rglob("*") if path.is_file())
        print(f"{len(run.records())} records, run folder {size / 1e6:.1f} MB")
