"""An index of many images as columns in memory-mapped files, so that memory does not grow."""

import atexit
import contextlib
import hashlib
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
from selfsight.data.cache_files import (
    check_owner,
    create_part_folder,
    hash_file,
    is_private,
    remove_abandoned,
    remove_any,
)
from selfsight.data.image_limits import check_regular
from selfsight.errors import UserError

DTYPES = {"text": np.uint8}  # of columns that are not int64
CHUNK = 1 << 20  # values rewritten at once
POLL = 0.2  # seconds between checks whether another process has finished writing


class Index(NamedTuple):
    """Memory-mapped columns by name, and metadata about all of them."""

    columns: dict[str, np.ndarray]
    metadata: dict[str, Any]
    notes: tuple[str, ...] = ()
    """Sentences to show to the user."""


class IndexWriteError(UserError):
    """The index cannot be written to its folder."""


class DamagedIndexError(UserError):
    """An index is not what was written."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"The index of the images in {path} is damaged ({reason}).")
        self.path = path


def load_or_write_index(folder: Path, key: str, write: Callable[["IndexWriter"], None]) -> Index:
    """Load the index stored under a key, or write it first; a damaged one is written again.

    If the folder is not writable, the index is written to a temporary folder for this run only.
    """
    notes: tuple[str, ...] = ()
    try:
        index = load_index(folder, key)
        if index is not None:
            return index
    except DamagedIndexError as error:
        notes = (f"{error} It was built again.",)
        remove_any(error.path)
    try:
        with IndexWriter(folder, key) as writer:
            write(writer)
    except IndexWriteError:
        _create_private(temporary_folder())
        with IndexWriter(temporary_folder(), key) as writer:
            write(writer)
        atexit.register(shutil.rmtree, writer.final, ignore_errors=True)
    try:
        index = load_index(folder, key)
    except DamagedIndexError as error:  # it could not be removed
        raise UserError(f"{error} Delete it, or set XDG_CACHE_HOME to another folder.") from error
    assert index is not None
    return index._replace(notes=(*notes, *index.notes))


def temporary_folder() -> Path:
    """Where an index goes if the cache folder is not writable; the same for all processes."""
    user = os.getuid() if hasattr(os, "getuid") else "index"
    return Path(tempfile.gettempdir()) / f"selfsight-{user}"


def load_index(folder: Path, key: str) -> Index | None:
    """Load the index stored under a key; None if there is no complete one.

    Only the first process of a machine gets None or a DamagedIndexError: the others wait until it
    has written the index.
    """
    is_first = dist.local_rank() == 0
    while True:
        try:
            index = _load_if_there(folder, key)
            if index is not None or is_first:
                return index
        except DamagedIndexError:
            if is_first:
                raise
        time.sleep(POLL)


def _load_if_there(folder: Path, key: str) -> Index | None:
    cached, temporary = (place / f"{key}.index" for place in (folder, temporary_folder()))
    # os.path.lexists is False, and does not raise, where access is denied.
    if os.path.lexists(cached):
        return _load_columns(cached)
    if is_private(temporary.parent) and os.path.lexists(temporary):
        return _load_columns(temporary)._replace(notes=(_not_cached(folder),))
    return None


def _load_columns(path: Path) -> Index:
    """Map the columns of an index whose checksums are right."""
    try:
        check_owner(path)
        check_regular(str(path / "about.json"))
        about = json.loads((path / "about.json").read_bytes())
        content = about["content"]
        if about["checksum"] != hashlib.sha256(json.dumps(content).encode()).hexdigest():
            raise ValueError("the checksum of about.json does not match")
        columns = {}
        for name, checksum in content["columns"].items():
            file = path / f"{name}.bin"
            check_owner(file)
            if hash_file(file) != checksum:
                raise ValueError(f"the checksum of {file.name} does not match")
            columns[name] = _map_column(file)
        return Index(columns, content["metadata"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise DamagedIndexError(path, " ".join(reason.split())) from error


class IndexWriter:
    """Appends values to columns; all become visible at once, when `finish` is called."""

    def __init__(self, folder: Path, key: str) -> None:
        self.final = folder / f"{key}.index"
        with self._explain_errors():
            folder.mkdir(parents=True, exist_ok=True)
            remove_abandoned(folder)
            self.folder, self.handle = create_part_folder(folder, key)

    def __enter__(self) -> "IndexWriter":
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self.handle)

    def add(self, columns: Mapping[str, Any]) -> None:
        """Append values to the end of each column."""
        for name, values in columns.items():
            with self._explain_errors(), (self.folder / f"{name}.bin").open("ab") as file:
                file.write(np.asarray(values, dtype=DTYPES.get(name, np.int64)).tobytes())

    def translate(self, column: str, table: np.ndarray) -> None:
        """Replace every value v >= 0 of a column by table[v]."""
        path = self.folder / f"{column}.bin"
        values = np.memmap(path, dtype=np.int64, mode="r+")
        for first in range(0, len(values), CHUNK):
            chunk = values[first : first + CHUNK]
            values[first : first + CHUNK] = np.where(chunk >= 0, table[np.maximum(chunk, 0)], chunk)
        values.flush()

    def finish(self, metadata: Mapping[str, Any]) -> None:
        """Write the metadata and move the index to its final name."""
        with self._explain_errors():
            columns = {file.stem: hash_file(file) for file in sorted(self.folder.glob("*.bin"))}
            content = {"metadata": dict(metadata), "columns": columns}
            checksum = hashlib.sha256(json.dumps(content).encode()).hexdigest()
            about = json.dumps({"checksum": checksum, "content": content})
            (self.folder / "about.json").write_text(about)
            try:
                os.rename(self.folder, self.final)
            except OSError:
                if not self.final.exists():  # else another process wrote the same index first
                    raise

    @contextlib.contextmanager
    def _explain_errors(self) -> Iterator[None]:
        """Turn an OSError into an IndexWriteError."""
        try:
            yield
        except OSError as error:
            raise IndexWriteError(
                f"The index of the images cannot be written to {self.final.parent}: "
                f"{error.strerror}. Free some space, or set XDG_CACHE_HOME to a writable folder."
            ) from error


def _create_private(folder: Path) -> None:
    """Create a folder that only this user can write to; raise a UserError if that is impossible."""
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700)
    if not is_private(folder):
        raise UserError(
            f"{folder} is not a folder that only you can write to, so no index of the images is "
            "stored in it. Set XDG_CACHE_HOME or TMPDIR to a folder of your own."
        )


def _not_cached(folder: Path) -> str:
    return (
        f"The index of the images could not be written to {folder}, so the next run has to build "
        "it again. Free some space there, or set XDG_CACHE_HOME to a writable folder."
    )


def _map_column(file: Path) -> np.ndarray:
    dtype = DTYPES.get(file.stem, np.int64)
    if not file.stat().st_size:
        return np.zeros(0, dtype)
    # Copy on write: torch wants arrays that are writable.
    return np.memmap(file, dtype=dtype, mode="c")
