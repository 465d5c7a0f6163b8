"""What is known of many pictures, in columns of mapped files: memory does not grow with them."""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sightline import dist

KINDS = {"text": np.uint8}  # of columns that are not int64
CHUNK = 1 << 20  # rows rewritten at once
POLL = 0.2  # seconds between looks whether another process has finished


class Index(NamedTuple):
    """Columns by name, mapped; and a few values about them all."""

    columns: dict[str, np.ndarray]
    about: dict[str, Any]


def open_index(folder: Path, key: str) -> Index | None:
    """What was written under this key, if it is whole.

    Only the first process of a machine gets None: the others wait until it has written.
    """
    path = folder / f"{key}.index"
    while not path.exists():
        if dist.local_rank() == 0:
            return None
        time.sleep(POLL)
    about = json.loads((path / "about.json").read_text())
    columns = {file.stem: _mapped(file) for file in path.glob("*.bin")}
    return Index(columns, about)


class IndexWriter:
    """Takes rows of columns; all become visible at once, when it is finished."""

    def __init__(self, folder: Path, key: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.final = folder / f"{key}.index"
        self.folder = Path(tempfile.mkdtemp(".part", key, folder))

    def __enter__(self) -> "IndexWriter":
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def add(self, rows: Mapping[str, Any]) -> None:
        """More rows at the end of each column."""
        for name, values in rows.items():
            with (self.folder / f"{name}.bin").open("ab") as file:
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
        (self.folder / "about.json").write_text(json.dumps(about))
        try:
            os.rename(self.folder, self.final)
        except OSError:  # another process was first, with the same
            assert self.final.exists()


def _mapped(file: Path) -> np.ndarray:
    kind = KINDS.get(file.stem, np.int64)
    if not file.stat().st_size:
        return np.zeros(0, kind)
    # Copy on write: torch takes only arrays that could be written to.
    return np.memmap(file, dtype=kind, mode="c")
