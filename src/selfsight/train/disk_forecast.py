"""Predict the disk space of a run; raise an error before it starts if it does not fit."""

import os
from pathlib import Path
from typing import NamedTuple

import torch

from selfsight.data import Source
from selfsight.data.cache_files import cache_folder
from selfsight.data.storage_plan import foresee_cache
from selfsight.errors import UserError
from selfsight.methods import DataInfo
from selfsight.recipe import Recipe
from selfsight.run_files.run_folder import Run
from selfsight.terminal.console import format_bytes
from selfsight.train.log_records import log_spacing
from selfsight.train.memory_forecast import COPIES, count_bytes

ROTATING = 4  # checkpoints at a time: last, previous, the next while it is written, before_skipped
RECORD_BYTES, GRADIENT_BYTES = 600, 40  # of a log record; of the norm of one layer's gradient
REPORT_BYTES = 16 * 2**20  # report, image sheets and results of a run took 4 MB


class DiskNeed(NamedTuple):
    """Bytes that a run will take."""

    checkpoint: int  # one of them
    checkpoints: int  # how many at most
    log: int
    cache: int  # decoded images, in the cache folder

    @property
    def run_folder(self) -> int:
        """Bytes in the run folder."""
        return self.checkpoint * self.checkpoints + self.log + REPORT_BYTES


def foresee_disk(recipe: Recipe, source: Source) -> DiskNeed:
    """Predict from the settings how many bytes a run will write."""
    with torch.device("meta"):
        method = recipe.method.build(recipe.backbone.build(), DataInfo(len(source), 2))
    state = sum(count_bytes(tensor) for tensor in method.state_dict().values())
    trained = [p for p in method.parameters() if p.requires_grad]
    # Weights are in the state, and gradients are not saved.
    state += (COPIES[recipe.optim.name] - 2) * sum(count_bytes(p) for p in trained)
    steps = recipe.epochs * max(1, len(source) // recipe.batch_size)
    records = steps // log_spacing(recipe, steps) + recipe.epochs // recipe.measure_every + 1
    gradients = GRADIENT_BYTES * len(trained) if recipe.log_gradients else 0
    return DiskNeed(
        checkpoint=state,
        checkpoints=ROTATING + len(recipe.keep_epochs),
        log=records * (RECORD_BYTES + gradients),
        cache=foresee_cache(source, recipe.data.stored),
    )


def check_disk(recipe: Recipe, source: Source, run: Run) -> str:
    """Return a sentence on the disk space of a run; raise a UserError if there is not enough."""
    need, folder, cache = foresee_disk(recipe, source), existing(run.path), existing(cache_folder())
    # What the folder holds is overwritten, or is part of the run that is resumed.
    old = sum(path.stat().st_size for path in run.path.rglob("*") if path.is_file())
    free, free_cache = free_bytes(folder) + old, free_bytes(cache)
    parts = (
        f"{need.checkpoints} checkpoints of {format_bytes(need.checkpoint)}, log "
        f"{format_bytes(need.log)}"
    )
    together = os.stat(folder).st_dev == os.stat(cache).st_dev
    total = need.run_folder + (need.cache if together else 0)
    if total > free:
        also = f", decoded images {format_bytes(need.cache)}" if together and need.cache else ""
        advice = ["choose an --out on a larger disk", "free some space"]
        advice += ["keep fewer --keep-epochs"] if recipe.keep_epochs else []
        advice += ["use --data.storage stream"] if also else []
        raise UserError(
            f"{run.path} will need up to {format_bytes(total)} ({parts}{also}), and "
            f"{format_bytes(free)} are free on its disk: {', or '.join(advice)}."
        )
    if need.cache > free_cache:
        raise UserError(
            f"The decoded images will take {format_bytes(need.cache)} in {cache_folder()}, where "
            f"{format_bytes(free_cache)} are free. Use --data.storage stream, or set "
            "XDG_CACHE_HOME to a folder on a larger disk."
        )
    return (
        f"Disk: up to {format_bytes(need.run_folder)} in {run.path} ({parts}); "
        f"{format_bytes(free)} are free."
    )


def existing(path: Path) -> Path:
    """Return the folder itself, or the nearest one above it that exists."""
    path = path.absolute()
    while not os.path.exists(path):  # False, without raising, where access is denied
        path = path.parent
    return path


def free_bytes(folder: Path) -> int:
    """Bytes that this user may still write there."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize
