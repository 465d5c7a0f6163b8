"""Where decoded pixels are collected: in memory, or in a mapped file once they outgrow it."""

import json
import os
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from sightline.errors import UserError


class Stored(NamedTuple):
    """Pixels of all pictures that could be read, and which those are."""

    flat: UInt8[Tensor, " bytes"]
    heights: Int64[np.ndarray, " n"]
    widths: Int64[np.ndarray, " n"]
    kept: Int64[np.ndarray, " n"]
    skipped: list[tuple[str, str]]


def default_folder() -> Path:
    """The user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "sightline"


def open_stored(folder: Path, key: str) -> Stored | None:
    """What an earlier run left under this key, mapped; None if there is nothing whole."""
    pixels, index = _paths(folder, key)
    if not (pixels.exists() and index.exists()):
        return None
    with np.load(index) as saved:
        heights, widths, kept = (saved[name] for name in ("heights", "widths", "kept"))
        skipped = [(name, why) for name, why in json.loads(str(saved["skipped"]))]
    return Stored(_mapped(pixels), heights, widths, kept, skipped)


class Store:
    """Takes pictures one by one; holds at most `budget` bytes before it turns to a file."""

    def __init__(self, folder: Path, key: str, budget: int) -> None:
        self.folder, self.key, self.budget = folder, key, budget
        self.parts: list[np.ndarray] = []
        self.sizes: list[tuple[int, int]] = []
        self.kept: list[int] = []
        self.skipped: list[tuple[str, str]] = []
        self.total = 0
        self.file: IO[bytes] | None = None

    def __enter__(self) -> "Store":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.file is not None:
            self.file.close()
            Path(self.file.name).unlink(missing_ok=True)

    def skip(self, name: str, reason: str) -> None:
        """Note a picture that cannot be read."""
        self.skipped.append((name, reason))

    def add(self, index: int, pixels: UInt8[np.ndarray, "c h w"]) -> None:
        """Take the next picture."""
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

    def finish(self, *, keep: bool) -> Stored:
        """All that was taken; a file is left for the next run if `keep`."""
        heights, widths = np.array(self.sizes, dtype=np.int64).reshape(-1, 2).T.copy()
        kept = np.array(self.kept, dtype=np.int64)
        if self.file is None:
            flat = np.empty(self.total, dtype=np.uint8)
            at = 0
            for part in self.parts:
                flat[at : at + part.size] = part.reshape(-1)
                at += part.size
            return Stored(torch.from_numpy(flat), heights, widths, kept, self.skipped)
        self._flush()
        beside = Path(self.file.name)
        if not keep:  # the mapping outlives the name
            return Stored(_mapped(beside), heights, widths, kept, self.skipped)
        pixels, index = _paths(self.folder, self.key)
        os.replace(beside, pixels)
        # The index comes last: while it is missing the pixels do not count.
        beside = index.with_name(f"{index.stem}.{os.getpid()}.part.npz")
        told = np.array(json.dumps(self.skipped))
        np.savez(beside, heights=heights, widths=widths, kept=kept, skipped=told)
        os.replace(beside, index)
        return Stored(_mapped(pixels), heights, widths, kept, self.skipped)

    def _spill(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.file = open(self.folder / f"{self.key}.{os.getpid()}.part", "wb")  # noqa: SIM115
        for part in self.parts:
            self._write(part)
        self.parts = []

    def _write(self, pixels: np.ndarray) -> None:
        assert self.file is not None
        try:
            self.file.write(pixels.data)
        except OSError as error:
            raise UserError(self._full(error)) from error

    def _flush(self) -> None:
        assert self.file is not None
        try:
            self.file.flush()
        except OSError as error:
            raise UserError(self._full(error)) from error

    def _full(self, error: OSError) -> str:
        return (
            f"The decoded pictures do not fit in memory, and writing them to {self.folder} failed "
            f"after {self.total / 2**30:.1f} GiB: {error.strerror}. Free some space, set "
            "XDG_CACHE_HOME to a larger disk, or lower data.store_size."
        )


def _paths(folder: Path, key: str) -> tuple[Path, Path]:
    return folder / f"{key}.pixels", folder / f"{key}.npz"


def _mapped(path: Path) -> Tensor:
    """The file's bytes, paged in as they are used; writing to them would not reach the file."""
    return torch.from_file(str(path), shared=False, size=path.stat().st_size, dtype=torch.uint8)
