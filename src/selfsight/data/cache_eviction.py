"""How much disk space cached pixels may take, and which are removed first."""

import os
from pathlib import Path

from selfsight.data.cache_files import INDEX_SUFFIX, list_abandoned, remove_abandoned
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
    old = sum(
        _size_and_use(file)[0] for file in (*folder.glob("*.pixels"), *list_abandoned(folder))
    )
    return min(cache_limit(), disk.f_bavail * disk.f_frsize + old)


def evict(folder: Path, needed: int) -> None:
    """Remove the least recently used pixels until `needed` bytes are within the limit.

    A run that has mapped a removed file keeps its bytes until it ends. Unfinished files of runs
    that were killed are removed first.
    """
    remove_abandoned(folder)
    files = {file: _size_and_use(file) for file in folder.glob("*.pixels")}
    total = needed + sum(size for size, _ in files.values())
    for file, (size, _) in sorted(files.items(), key=lambda item: item[1][1]):
        if total <= cache_limit():
            return
        total -= size
        # The index first: without it pixels do not count.
        file.with_suffix(INDEX_SUFFIX).unlink(missing_ok=True)
        file.unlink(missing_ok=True)


def _size_and_use(file: Path) -> tuple[int, float]:
    """Bytes of a file, and when it was last used; 0 if another run has removed it meanwhile."""
    try:
        about = file.stat()
    except FileNotFoundError:
        return 0, 0.0
    return about.st_size, about.st_mtime
