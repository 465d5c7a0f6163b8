"""Files of a cache: written as .part and locked, checked by a checksum and by their owner.

A .part file without a lock was abandoned by a process that died, and is removed.
"""

import contextlib
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO

from selfsight.data.cgroup_limits import available_cpus
from selfsight.data.image_limits import check_regular
from selfsight.terminal.progress import track

try:
    import fcntl
except ImportError:  # Windows, where an open file cannot be removed
    fcntl = None  # type: ignore[assignment]

BLOCK = 4 << 20  # bytes that one thread hashes at once
MAX_THREADS = 16
INDEX_SUFFIX = ".sizes"
SUFFIX = ".part"  # of files and folders that are still being written


def cache_folder() -> Path:
    """The folder `selfsight` in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "selfsight"


def hash_file(path: Path, title: str | None = None) -> str:
    """SHA-256 of the SHA-256 of each block; a title shows progress on large files."""
    size = check_regular(str(path))
    total = hashlib.sha256(str(size).encode())
    starts = range(0, size, BLOCK)
    if len(starts) < 2:  # starting threads takes longer than hashing a small file
        for start in starts:
            total.update(_hash_block(path, start))
        return total.hexdigest()
    with ThreadPoolExecutor(min(MAX_THREADS, available_cpus())) as pool:
        blocks = pool.map(partial(_hash_block, path), starts)
        for block in blocks if title is None else track(blocks, title, total=len(starts)):
            total.update(block)
    return total.hexdigest()


def _hash_block(path: Path, start: int) -> bytes:
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        return hashlib.sha256(file.read(BLOCK)).digest()


def check_owner(path: Path) -> None:
    """Raise an OSError if a file belongs to another user, who could have written anything."""
    if hasattr(os, "getuid") and (owner := path.lstat().st_uid) not in (os.getuid(), 0):
        raise PermissionError(1, f"it belongs to another user, {owner}")


def is_private(folder: Path) -> bool:
    """Whether only this user can write to the folder, which another user may have created."""
    try:
        about = folder.lstat()  # of a link itself
    except OSError:
        return False
    if not hasattr(os, "getuid"):
        return stat.S_ISDIR(about.st_mode)
    mine = about.st_uid == os.getuid() and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(about.st_mode) and mine


def create_part_file(folder: Path, key: str | None) -> IO[bytes]:
    """Create a file for unfinished output, locked until it is closed.

    The lock tells other processes that the writer is alive: an unlocked part file is abandoned.
    """
    while True:
        file = tempfile.NamedTemporaryFile(  # noqa: SIM115
            suffix=SUFFIX, prefix=key, dir=folder, delete=False
        )
        _lock(file.fileno(), wait=True)
        if os.path.exists(file.name):  # else it was removed as abandoned before it was locked
            return file
        file.close()


def create_part_folder(folder: Path, key: str) -> tuple[Path, int]:
    """Create a folder for unfinished output, and the handle that locks it until closed."""
    while True:
        path = Path(tempfile.mkdtemp(SUFFIX, key, folder))
        with contextlib.suppress(FileNotFoundError):
            handle = os.open(path, os.O_RDONLY)
            _lock(handle, wait=True)
            if path.exists():
                return path, handle
            os.close(handle)


def list_abandoned(folder: Path) -> Iterator[Path]:
    """Unfinished files and folders of processes that have died; each is locked while yielded."""
    for path in folder.glob(f"*{SUFFIX}"):
        with contextlib.suppress(OSError):
            handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
            try:
                if _lock(handle, wait=False):
                    yield path
            finally:
                os.close(handle)


def remove_abandoned(folder: Path) -> None:
    """Delete the unfinished files and folders of processes that have died."""
    for path in list_abandoned(folder):
        remove_any(path)


def remove_any(path: Path) -> None:
    """Remove a file or folder, as far as possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def _lock(handle: int, *, wait: bool) -> bool:
    """Lock an open file until it is closed or the process ends; False if that failed."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:  # locked by another process, or the file system has no locks
        return False
    return True
