"""Save and load checkpoints: write a new file, rename it, keep the last two, run no code."""

import os
import pickle
from pathlib import Path
from typing import Any

import torch

from selfsight.errors import UserError
from selfsight.run_folder import Run


def save(run: Run, state: dict[str, Any]) -> None:
    """Save the state as the last checkpoint; the one before it becomes the previous."""
    folder = run.checkpoints
    folder.mkdir(parents=True, exist_ok=True)
    last, previous, partial = folder / "last.pt", folder / "previous.pt", folder / "last.pt.part"
    _write(partial, state)
    if last.exists():
        os.replace(last, previous)
    os.replace(partial, last)


def keep(run: Run, state: dict[str, Any], epoch: int) -> None:
    """Save the state under the name of its epoch, which no later checkpoint replaces."""
    path = run.kept_checkpoint(epoch)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".part")
    _write(partial, state)
    os.replace(partial, path)


def load(run: Run, device: torch.device | str = "cpu") -> dict[str, Any] | None:
    """Load the newest readable checkpoint; None if the run has not saved one."""
    broken: list[str] = []
    for name in ("last.pt", "previous.pt"):
        path = run.checkpoints / name
        if not path.exists():
            continue
        state = _read(path, device)
        if state is not None:
            return state
        broken.append(name)
    if broken:
        raise UserError(
            f"No checkpoint in {run.checkpoints} can be read ({', '.join(broken)} broken). "
            "Start the run again with --overwrite."
        )
    return None


def _write(path: Path, state: dict[str, Any]) -> None:
    with path.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def _read(path: Path, device: torch.device | str) -> dict[str, Any] | None:
    try:
        return torch.load(path, map_location=device, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, OSError):
        return None
