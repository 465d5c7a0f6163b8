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
    with partial.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    if last.exists():
        os.replace(last, previous)
    os.replace(partial, last)


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


def _read(path: Path, device: torch.device | str) -> dict[str, Any] | None:
    try:
        return torch.load(path, map_location=device, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, OSError):
        return None
