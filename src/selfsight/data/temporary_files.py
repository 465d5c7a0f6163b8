"""What is being written: locked, so that what dead processes left half written is known."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows, where nobody can remove what is open
    fcntl = None  # type: ignore[assignment]

ENDING = ".part"


def new_part(folder: Path, key: str | None) -> IO[bytes]:
    """A new file to write to, locked until it is closed."""
    while True:
        file = tempfile.NamedTemporaryFile(  # noqa: SIM115
            suffix=ENDING, prefix=key, dir=folder, delete=False
        )
        _lock(file.fileno(), wait=True)
        if os.path.exists(file.name):  # nobody took it for a dead process's before it was locked
            return file
        file.close()


def new_folder(folder: Path, key: str) -> tuple[Path, int]:
    """A new folder to write to, and what to close once it is written: it is locked until then."""
    while True:
        path = Path(tempfile.mkdtemp(ENDING, key, folder))
        with contextlib.suppress(FileNotFoundError):
            handle = os.open(path, os.O_RDONLY)
            _lock(handle, wait=True)
            if path.exists():
                return path, handle
            os.close(handle)


def abandoned(folder: Path) -> Iterator[Path]:
    """Parts of processes that have died; each is locked while it is looked at."""
    for path in folder.glob(f"*{ENDING}"):
        with contextlib.suppress(OSError):
            handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
            try:
                if _lock(handle, wait=False):
                    yield path
            finally:
                os.close(handle)


def remove_abandoned(folder: Path) -> None:
    """Give back what dead processes left."""
    for path in abandoned(folder):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _lock(handle: int, *, wait: bool) -> bool:
    """Whether it is ours now; the lock ends with the process, however that ends."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:  # another's, or a file system without locks, on which nothing is removed
        return False
    return True
