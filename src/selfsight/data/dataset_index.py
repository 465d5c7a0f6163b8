"""What is known of many images, in columns of mapped files: memory does not grow with them."""

import atexit
import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from selfsight import dist
from selfsight.data.temporary_files import new_folder, remove_abandoned
from selfsight.errors import UserError

KINDS = {"text": np.uint8}  # of columns that are not int64
CHUNK = 1 << 20  # rows rewritten at once
POLL = 0.2  # seconds between looks whether another process has finished


class Index(NamedTuple):
    """Columns by name, mapped; and a few values about them all."""

    columns: dict[str, np.ndarray]
    about: dict[str, Any]
    notes: tuple[str, ...] = ()
    """Sentences the user should see."""


class UnkeptError(UserError):
    """An index that cannot be written where it should be."""


def made_index(folder: Path, key: str, write: Callable[["IndexWriter"], None]) -> Index:
    """What was written under this key, or is now; if it cannot be kept, only for this run."""
    index = open_index(folder, key)
    if index is not None:
        return index
    try:
        with IndexWriter(folder, key) as writer:
            write(writer)
    except UnkeptError:
        with IndexWriter(temporary(), key) as writer:
            write(writer)
        atexit.register(shutil.rmtree, writer.final, ignore_errors=True)
    index = open_index(folder, key)
    assert index is not None
    return index


def temporary() -> Path:
    """Where an index lies that the cache folder does not take: all processes of a run know it."""
    user = os.getuid() if hasattr(os, "getuid") else "index"
    return Path(tempfile.gettempdir()) / f"selfsight-{user}"


def open_index(folder: Path, key: str) -> Index | None:
    """What was written under this key, if it is whole.

    Only the first process of a machine gets None: the others wait until it has written.
    """
    kept, passing = (place / f"{key}.index" for place in (folder, temporary()))
    # os.path: what may not be looked at is not there.
    while not (os.path.exists(kept) or _ours(passing)):
        if dist.local_rank() == 0:
            return None
        time.sleep(POLL)
    path, notes = (kept, ()) if os.path.exists(kept) else (passing, (_passing(folder),))
    about = json.loads((path / "about.json").read_text())
    columns = {file.stem: _mapped(file) for file in path.glob("*.bin")}
    return Index(columns, about, notes)


class IndexWriter:
    """Takes rows of columns; all become visible at once, when it is finished."""

    def __init__(self, folder: Path, key: str) -> None:
        self.final = folder / f"{key}.index"
        with self._told():
            folder.mkdir(parents=True, exist_ok=True)
            remove_abandoned(folder)
            self.folder, self.handle = new_folder(folder, key)

    def __enter__(self) -> "IndexWriter":
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self.handle)

    def add(self, rows: Mapping[str, Any]) -> None:
        """More rows at the end of each column."""
        for name, values in rows.items():
            with self._told(), (self.folder / f"{name}.bin").open("ab") as file:
                file.write(np.asarray(values, dtype=KINDS.get(name, np.int64)).tobytes())

    def translate(self, column: str, table: np.ndarray) -> None:
        """Replace every value v >= 0 of a column by table[v]."""
        path = self.folder / f"{column}.bin"
        values = np.memmap(path, dtype=np.int64, mode="r+")
        for first in range(0, len(values), CHUNK):
            some = values[first : first + CHUNK]
            values[first : first + CHUNK] = np.where(some >= 0, table[np.maximum(some, 0)], some)
        values.flush()

    def finish(self, about: Mapping[str, Any]) -> None:
        """Let others find it."""
        with self._told():
            (self.folder / "about.json").write_text(json.dumps(about))
            try:
                os.rename(self.folder, self.final)
            except OSError:
                if not self.final.exists():  # else another process was first, with the same
                    raise

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """A disk that is full or takes nothing is told in a sentence."""
        try:
            yield
        except OSError as error:
            raise UnkeptError(
                f"The index of the images cannot be written to {self.final.parent}: "
                f"{error.strerror}. Free some space, or set XDG_CACHE_HOME to a folder that can be "
                "written to."
            ) from error


def _ours(path: Path) -> bool:
    """Whether this user wrote it: others may write to a machine's temporary folder too."""
    try:
        return not hasattr(os, "getuid") or path.stat().st_uid == os.getuid()
    except OSError:
        return False


def _passing(folder: Path) -> str:
    return (
        f"The index of the images could not be kept in {folder}, so that the next run makes it "
        "anew. Free some space there, or set XDG_CACHE_HOME to a folder that can be written to."
    )


def _mapped(file: Path) -> np.ndarray:
    kind = KINDS.get(file.stem, np.int64)
    if not file.stat().st_size:
        return np.zeros(0, kind)
    # Copy on write: torch takes only arrays that could be written to.
    return np.memmap(file, dtype=kind, mode="c")
