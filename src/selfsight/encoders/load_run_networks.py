"""Load the networks of a run from its last checkpoint, or from one that is named by its file."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from selfsight.command_hint import write_command
from selfsight.errors import UserError, list_first
from selfsight.methods import Method
from selfsight.recipe import Recipe
from selfsight.run_files.run_folder import Run
from selfsight.train import checkpoint
from selfsight.train.init_weights import build_method

LOADED = ("student.", "teacher.", "queue.")  # what an evaluation looks at


class RunCheckpoint(NamedTuple):
    """A checkpoint of a run."""

    run: Run
    file: Path | None = None  # None: the last one

    @property
    def is_last(self) -> bool:
        """Whether it is the last one of the run, of which the results are."""
        return self.file is None or self.file.name == checkpoint.LAST


def find_checkpoint(name: str | Path) -> RunCheckpoint | None:
    """Find the checkpoint that a run folder, or a file in its checkpoints, names; else None."""
    path = Path(name)
    if Run(path).recipe_path.exists():
        return RunCheckpoint(Run(path))
    run = Run(path.parent.parent)
    if path.parent != run.checkpoints or not run.recipe_path.exists():
        return None
    if not path.is_file():
        names = sorted(file.name for file in run.checkpoints.glob("*.pt"))
        raise UserError(
            f"{path} does not exist. {run.path} has {list_first(names) or 'no checkpoint yet'}; "
            "`pretrain --keep-epochs` keeps those of chosen epochs."
        )
    return RunCheckpoint(run, path)


def load_method(where: RunCheckpoint, recipe: Recipe, device: torch.device) -> Method:
    """Build the method, with the student, the teacher and the queue of the checkpoint."""
    method = build_method(recipe, device)

    def load_weights(saved: dict[str, Any]) -> None:
        weights = {k: v for k, v in saved["method"].items() if k.startswith(LOADED)}
        expected = {k for k in method.state_dict() if k.startswith(LOADED)}
        if weights.keys() != expected:
            names = ", ".join(sorted(weights.keys() ^ expected)[:3])
            raise KeyError(f"other weights than the recipe's: {names}")
        method.load_state_dict(weights, strict=False)

    if where.file is not None:
        checkpoint.load_file(where.run, where.file, device, use=load_weights)
    elif checkpoint.load_newest(where.run, device, use=load_weights) is None:
        raise UserError(
            f"{where.run.path} has no checkpoint yet: the run has not saved one. "
            f"Resume it with: {write_command('resume', where.run)}"
        )
    return method


def load_kept_methods(
    run: Run, recipe: Recipe, device: torch.device
) -> Iterator[tuple[int, Method]]:
    """Yield each epoch whose checkpoint was kept, with the method of that checkpoint."""
    for epoch in run.kept_epochs:
        yield epoch, load_method(RunCheckpoint(run, run.kept_checkpoint(epoch)), recipe, device)
