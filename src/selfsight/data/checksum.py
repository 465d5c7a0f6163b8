"""Checksums by which damage to cached files is noticed, and whose the files are."""

import hashlib
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from selfsight.data.cgroup_limits import available_cpus
from selfsight.data.image_limits import check_regular
from selfsight.progress import track

BLOCK = 4 << 20  # bytes that one thread hashes at once
MAX_THREADS = 16


def hash_file(path: Path, title: str | None = None) -> str:
    """SHA-256 of the SHA-256 of each block; with a title, the progress on large files is shown."""
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
    """Whether only this user can write to the folder: others may have created one of its name."""
    try:
        about = folder.lstat()  # of a link itself
    except OSError:
        return False
    if not hasattr(os, "getuid"):
        return stat.S_ISDIR(about.st_mode)
    mine = about.st_uid == os.getuid() and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(about.st_mode) and mine
