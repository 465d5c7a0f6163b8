"""The folder of a new run: its name, and the old run, kept until the new one has a checkpoint."""

import os
import re
import shutil
from pathlib import Path

from selfsight.errors import UserError
from selfsight.options.pretrain_options import PretrainOptions
from selfsight.run_files.json_files import explain_write_errors
from selfsight.run_files.run_folder import LOCK, Run


def choose_folder(data: str, options: PretrainOptions) -> Path:
    """Return --out, or runs/DATA-METHOD, numbered if that exists and is not to be resumed."""
    if options.out is not None:
        if not str(options.out).strip():
            raise UserError("--out is empty; a variable of the shell may be unset. Give a folder.")
        return Path(options.out)
    suffix = options.recipe if isinstance(options.recipe, str) else options.method or "auto"
    suffix = re.sub(r"\.json$|\.py:", "-", Path(suffix).name).strip("-")  # of a recipe in a file
    name = file_name(f"{Path(data.split(':')[-1]).stem or 'run'}-{suffix}")
    number, path = 1, Path("runs") / name
    while path.exists() and not options.resume:
        number += 1
        path = Path("runs") / f"{name}-{number}"
    return path


def file_name(name: str) -> str:
    """Replace characters that some file systems do not allow."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name)


def create_folder(folder: Path) -> None:
    """Create a folder; raise a UserError if that is impossible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"The folder {folder} cannot be created: {error.strerror}. Give another folder."
        ) from error


def check_folder(run: Run, *, overwrite: bool) -> None:
    """Raise a UserError unless the folder is empty, or holds a run that may be overwritten."""
    if not _entries(run):
        return
    if not overwrite:
        raise UserError(
            f"{run.path} is not empty. Add --resume to resume the run in it, --overwrite to "
            "empty it first, or give another --out."
        )
    if not run.recipe_path.exists():
        raise UserError(
            f"{run.path} holds files but no run (no recipe.json), so --overwrite will not empty "
            "it. Empty it yourself, or give another --out."
        )


def set_old_run_aside(run: Run) -> None:
    """Move the run that will be overwritten into a folder; one without a checkpoint is deleted."""
    aside = run.overwritten
    with explain_write_errors(aside):
        if not run.checkpoints.is_dir():
            _delete(_entries(run))
            return
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        # recipe.json first: without it no new run has begun, and the old one is put back.
        for entry in sorted(_entries(run), key=lambda path: path != run.recipe_path):
            os.replace(entry, aside / entry.name)


def restore_old_run(run: Run) -> bool:
    """Restore the run that was set aside, and delete the new one; False if there is none."""
    aside = run.overwritten
    if not aside.is_dir():
        return False
    with explain_write_errors(run.path):
        _delete(_entries(run))
        _move_back(run)
    return True


def restore_unless_begun(run: Run) -> None:
    """Restore what a killed process had moved before its own run started."""
    if run.overwritten.is_dir() and not run.recipe_path.exists():
        with explain_write_errors(run.path):
            _move_back(run)


def _move_back(run: Run) -> None:
    aside = run.overwritten
    entries = sorted(aside.iterdir(), key=lambda path: path.name == run.recipe_path.name)
    for entry in entries:  # recipe.json last
        os.replace(entry, run.path / entry.name)
    aside.rmdir()


def _entries(run: Run) -> list[Path]:
    """List the folder, without the lock and the run that was set aside."""
    return [path for path in run.path.iterdir() if path.name not in (LOCK, run.overwritten.name)]


def _delete(paths: list[Path]) -> None:
    for path in paths:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
