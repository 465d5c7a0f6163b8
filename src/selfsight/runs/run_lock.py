"""The run folder of a command: its name, its lock, and the run that a new one overwrites."""

import contextlib
import os
import re
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from selfsight import dist
from selfsight.errors import UserError
from selfsight.options.pretrain_options import PretrainOptions
from selfsight.run_files.json_files import NO_LINK, explain_write_errors
from selfsight.run_files.run_folder import Run

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK = "lock"


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


@contextlib.contextmanager
def lock_run(run: Run) -> Iterator[None]:
    """Lock the run folder, created if need be; raise a UserError if another process trains in it.

    The lock ends with this process, however that ends: the operating system holds it, and no
    worker process inherits it. A folder in which nothing was begun is removed again.
    """
    handle = dist.on_first(lambda: _acquire(run.path))
    try:
        dist.on_first(lambda: _restore_unless_begun(run))
        yield
    finally:
        if dist.rank() == 0:
            with contextlib.suppress(OSError):  # for example if the folder was deleted
                (run.path / LOCK).unlink()
                run.path.rmdir()  # fails unless it is empty
            os.close(handle)


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
    """Put the run that was set aside back, in place of what was begun; False if there is none."""
    aside = run.overwritten
    if not aside.is_dir():
        return False
    with explain_write_errors(run.path):
        _delete(_entries(run))
        _move_back(run)
    return True


def _restore_unless_begun(run: Run) -> None:
    """Put back what a process that was killed had moved before its own run began."""
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
    """Return what the folder holds, but for the lock and the run that was set aside."""
    return [path for path in run.path.iterdir() if path.name not in (LOCK, run.overwritten.name)]


def _delete(paths: list[Path]) -> None:
    for path in paths:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _acquire(folder: Path) -> int:
    """Return the open file that holds the lock; it is not inherited by programs started later."""
    if folder.is_file():
        raise UserError(f"--out {folder} is a file; give a folder.")
    path = folder / LOCK
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"The folder {folder} cannot be created: {error.strerror}. Give another --out."
            ) from error
        with explain_write_errors(path):
            handle = os.open(path, os.O_RDWR | os.O_CREAT | NO_LINK, 0o644)
        try:
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(handle, 200).decode(errors="replace")
            os.close(handle)
            raise UserError(
                f"{folder} is being written by {holder or 'another process'}. Wait for it, "
                "stop it, or give another --out."
            ) from None
        except OSError:  # a file system without locks
            break
        if os.path.exists(path) and os.path.samestat(os.fstat(handle), os.stat(path)):
            break
        os.close(handle)  # the holder removed the file before its lock ended
    os.ftruncate(handle, 0)
    os.write(handle, f"process {os.getpid()} on {socket.gethostname()}".encode())
    return handle
