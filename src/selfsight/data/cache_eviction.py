"""How much disk space cached pixels may take, and which are removed first."""

import os
from pathlib import Path

from selfsight.data.cache_files import (
    INDEX_SUFFIX,
    list_abandoned,
    remove_abandoned,
)
from selfsight.data.image_limits import read_number

LIMIT_VARIABLE = "SELFSIGHT_CACHE_GIB"  # environment variable
DEFAULT_LIMIT_GIB = 200.0  # of disk space for all cached pixels


def cache_limit() -> int:
    """Bytes that all cached pixels may take on disk."""
    return int(read_number(LIMIT_VARIABLE, DEFAULT_LIMIT_GIB, "GiB") * 2**30)


def free_disk(folder: Path) -> int:
    """Bytes that new cached pixels may take: old ones are evicted if necessary."""
    while not os.path.exists(folder):  # False, without raising, where access is denied
        folder = folder.parent
    disk = os.statvfs(folder)
    old = sum(map(_size, (*folder.glob("*.pixels"), *list_abandoned(folder))))
    return min(cache_limit(), disk.f_bavail * disk.f_frsize + old)


def evict(folder: Path, needed: int) -> None:
    """Remove the least recently used pixels until `needed` bytes are within the limit.

    A run that has mapped a removed file keeps its bytes until it ends. Unfinished files of runs
    that were killed are removed first.
    """
    remove_abandoned(folder)
    files = sorted(folder.glob("*.pixels"), key=_last_use)
    total = needed + sum(map(_size, files))
    for file in files:
        if total <= cache_limit():
            return
        total -= _size(file)
        # The index first: without it pixels do not count.
        file.with_suffix(INDEX_SUFFIX).unlink(missing_ok=True)
        file.unlink(missing_ok=True)


def _size(file: Path) -> int:
    """Bytes of a file; 0 if another run has removed it meanwhile."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def _last_use(file: Path) -> float:
    """When a file was last used; 0 if another run has removed it meanwhile."""
    try:
        return file.stat().st_mtime
    except FileNotFoundError:
        return 0.0
