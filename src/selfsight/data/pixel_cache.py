"""Where decoded pixels are collected: in memory, or in a mapped file once they outgrow it."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from selfsight.data import cgroup_limits
from selfsight.data.temporary_files import abandoned, new_part, remove_abandoned
from selfsight.errors import UserError

CAP = "SELFSIGHT_CACHE_GIB"  # environment variable
CAP_GIB = 200.0  # that all decoded pixels together may take on disk


class Stored(NamedTuple):
    """Pixels of all images that could be read, and which those are."""

    flat: UInt8[Tensor, " bytes"]
    heights: Int64[np.ndarray, " n"]
    widths: Int64[np.ndarray, " n"]
    kept: Int64[np.ndarray, " n"]
    skipped: list[tuple[str, str]]


def default_folder() -> Path:
    """The user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "selfsight"


def cap() -> int:
    """Bytes that the files of decoded pixels may take together."""
    word = os.environ.get(CAP, "")
    try:
        return int(float(word or CAP_GIB) * 2**30)
    except ValueError:
        raise UserError(f"{CAP} is {word!r}; it should be a number of GiB, such as 500.") from None


def free_memory() -> int:
    """Bytes that can be taken without swapping, or passing the limit of a container."""
    free, left = _available(), cgroup_limits.memory_left()
    return free if left is None else min(free, left)


def _available() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def free_disk(folder: Path) -> int:
    """Bytes that decoded pixels may still take: of the disk, and of the cap once old ones go."""
    while not os.path.exists(folder):  # nor is what may not be looked at
        folder = folder.parent
    disk = os.statvfs(folder)
    old = sum(file.stat().st_size for file in (*folder.glob("*.pixels"), *abandoned(folder)))
    return min(cap(), disk.f_bavail * disk.f_frsize + old)


def make_room(folder: Path, needed: int) -> None:
    """Remove the pixels that were not used for longest until so many bytes are within the cap.

    A run that has mapped a removed file keeps its bytes until it ends. What runs that were killed
    left half written goes first.
    """
    remove_abandoned(folder)
    files = sorted(folder.glob("*.pixels"), key=lambda file: file.stat().st_mtime)
    total = needed + sum(file.stat().st_size for file in files)
    for file in files:
        if total <= cap():
            return
        total -= file.stat().st_size
        file.with_suffix(".npz").unlink(missing_ok=True)  # first: without it pixels do not count
        file.unlink(missing_ok=True)


def is_stored(folder: Path, key: str) -> bool:
    """Whether an earlier run left whole pixels under this key."""
    return all(os.path.exists(path) for path in _paths(folder, key))


def open_stored(folder: Path, key: str) -> Stored | None:
    """What an earlier run left under this key, mapped; None if there is nothing whole."""
    if not is_stored(folder, key):
        return None
    pixels, index = _paths(folder, key)
    with np.load(index) as saved:
        heights, widths, kept = (saved[name] for name in ("heights", "widths", "kept"))
        skipped = [(name, why) for name, why in json.loads(str(saved["skipped"]))]
    os.utime(pixels)  # used now: the oldest are removed first
    return Stored(_mapped(pixels), heights, widths, kept, skipped)


class Store:
    """Takes images one by one; holds at most `budget` bytes before it turns to a file.

    The file is left for later runs if it has a key, and gone with this one if not.
    """

    def __init__(self, folder: Path, key: str | None, budget: int) -> None:
        self.folder, self.key, self.budget = folder, key, budget
        self.parts: list[np.ndarray] = []
        self.sizes: list[tuple[int, int]] = []
        self.kept: list[int] = []
        self.skipped: list[tuple[str, str]] = []
        self.total = 0
        self.file: IO[bytes] | None = None
        self.beside: list[Path] = []

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        if self.file is not None:
            with contextlib.suppress(OSError):  # what did not fit is written once more
                self.file.close()
        for path in self.beside:
            path.unlink(missing_ok=True)

    def skip(self, name: str, reason: str) -> None:
        """Note an image that cannot be read."""
        self.skipped.append((name, reason))

    def add(self, index: int, pixels: UInt8[np.ndarray, "c h w"]) -> None:
        """Take the next image."""
        pixels = np.ascontiguousarray(pixels)
        self.kept.append(index)
        self.sizes.append((pixels.shape[1], pixels.shape[2]))
        self.total += pixels.nbytes
        if self.file is None and self.total > self.budget:
            self._spill()
        if self.file is None:
            self.parts.append(pixels)
        else:
            self._write(pixels)

    def finish(self) -> Stored:
        """All that was taken."""
        heights, widths = np.array(self.sizes, dtype=np.int64).reshape(-1, 2).T.copy()
        kept = np.array(self.kept, dtype=np.int64)
        if self.file is None:
            flat = np.empty(self.total, dtype=np.uint8)
            at = 0
            self.parts.reverse()
            while self.parts:  # each goes as it is copied: there is no room for all of them twice
                part = self.parts.pop()
                flat[at : at + part.size] = part.reshape(-1)
                at += part.size
            return Stored(torch.from_numpy(flat), heights, widths, kept, self.skipped)
        told = np.array(json.dumps(self.skipped))
        with self._told():
            self.file.flush()
            pixels = self.beside[0]
            if self.key is None:  # the mapping outlives the name
                return Stored(_mapped(pixels), heights, widths, kept, self.skipped)
            make_room(self.folder, self.total)
            index = self._part()
            try:
                np.savez(index, heights=heights, widths=widths, kept=kept, skipped=told)
            finally:
                index.close()
            # The index comes last: while it is missing the pixels do not count.
            for written, path in zip(self.beside, _paths(self.folder, self.key), strict=True):
                os.replace(written, path)
            pixels, _ = _paths(self.folder, self.key)
        return Stored(_mapped(pixels), heights, widths, kept, self.skipped)

    def _part(self) -> IO[bytes]:
        """A new file that is gone with this store unless it gets its final name."""
        part = new_part(self.folder, self.key)
        self.beside.append(Path(part.name))
        return part

    def _spill(self) -> None:
        with self._told():
            self.folder.mkdir(parents=True, exist_ok=True)
            remove_abandoned(self.folder)
            self.file = self._part()
        for part in self.parts:
            self._write(part)
        self.parts = []

    def _write(self, pixels: np.ndarray) -> None:
        assert self.file is not None
        if self.total > cap():
            raise UserError(
                f"The decoded images take more than the {cap() / 2**30:.0f} GiB that the cache "
                f"in {self.folder} may have. Raise {CAP}, lower data.store_size, or use "
                "--data.keep stream."
            )
        with self._told():
            self.file.write(pixels.data)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """A disk that is full or takes nothing is told in a sentence."""
        try:
            yield
        except OSError as error:
            raise UserError(
                "The decoded images do not fit in memory, and writing them to "
                f"{self.folder} failed after {self.total / 2**30:.1f} GiB: {error.strerror}. Free "
                "some space, set XDG_CACHE_HOME to a larger disk, lower data.store_size, or use "
                "--data.keep stream."
            ) from error


def _paths(folder: Path, key: str) -> tuple[Path, Path]:
    return folder / f"{key}.pixels", folder / f"{key}.npz"


def _mapped(path: Path) -> Tensor:
    """The file's bytes, paged in as they are used; writing to them would not reach the file."""
    return torch.from_file(str(path), shared=False, size=path.stat().st_size, dtype=torch.uint8)
