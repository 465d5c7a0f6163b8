"""Copy the records of a log to TensorBoard or Weights & Biases; log.jsonl stays the source."""

import importlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from selfsight.errors import UserError
from selfsight.run_files.run_folder import Run


class LogTracker:
    """Copies a log from its first record on, again after a resume."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.run = name, Run(path)
        self.write: Callable[[dict[str, float], int], None] | None = None

    def add(self, record: dict[str, Any]) -> None:
        """Copy one record; the first call copies the whole log."""
        records = [record]
        if self.write is None:
            records = self.run.records()  # ends with this one
            self.write = self._start()
        for one in records:
            self.write(_numbers(one), one["step"])

    def _start(self) -> Callable[[dict[str, float], int], None]:
        folder = self.run.path / self.name
        shutil.rmtree(folder, ignore_errors=True)
        if self.name == "tensorboard":
            return _start_tensorboard(folder)
        mode = os.environ.get("WANDB_MODE", "offline")
        wandb = importlib.import_module("wandb")
        run = wandb.init(
            project="selfsight",
            name=self.run.path.name,
            dir=self.run.path,
            mode=mode,
            reinit="finish_previous",  # else the next run of this process would continue this one
        )
        return lambda numbers, step: run.log(numbers, step=step)


def _start_tensorboard(folder: Path) -> Callable[[dict[str, float], int], None]:
    module: Any = importlib.import_module("torch.utils.tensorboard")
    writer = module.SummaryWriter(str(folder))

    def write(numbers: dict[str, float], step: int) -> None:
        for name, value in numbers.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return write


def check_tracker(name: str | None) -> None:
    """Raise a UserError if the package of a tracker is not installed."""
    if name is None:
        return
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise UserError(
            f"--track {name} needs a package that is not installed ({error}). Install it with: "
            f"pip install {name}"
        ) from error


def _numbers(record: dict[str, Any]) -> dict[str, float]:
    kept = {k: v for k, v in record.items() if k != "step" and isinstance(v, int | float)}
    return {k: float(v) for k, v in kept.items()}
