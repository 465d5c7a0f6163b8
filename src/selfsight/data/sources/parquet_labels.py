"""Names and classes of Parquet rows: the small columns, beside the images."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from selfsight.data.dataset_index import IndexWriter, open_index
from selfsight.data.remote import File
from selfsight.data.source import UNKNOWN, digest, numbered, sorted_words
from selfsight.errors import UserError
from selfsight.progress import track

VERSION = 1  # of the index
READERS = 16  # files opened at once
BATCH = 1 << 16  # rows of a small column read at once
Labels = tuple[np.ndarray | None, tuple[str, ...]]


class Columns(NamedTuple):
    """Where a file keeps its images and classes."""

    image: str
    nested: bool  # struct{bytes, path}, else plain bytes
    has_path: bool
    label: str | None
    class_names: tuple[str, ...]


def opened(file: File) -> pq.ParquetFile:
    """A file to be closed; on this machine mapped, so that large row groups are paged in."""
    if file.system is None:
        return pq.ParquetFile(file.path, memory_map=True)
    return pq.ParquetFile(file.opened(), pre_buffer=True)


def few_labels(
    files: Sequence[File], columns: Columns, count: int
) -> tuple[list[str], np.ndarray | None, tuple[str, ...]]:
    """Names and classes of all rows, in memory."""
    names: list[str] = []
    words: list[Any] = []
    wanted = [f"{columns.image}.path"] if columns.has_path else []
    wanted += [columns.label] if columns.label else []

    def table_of(file: File) -> tuple[int, pa.Table | None]:
        with opened(file) as parquet:
            table = parquet.read(columns=wanted, use_threads=False) if wanted else None
            return parquet.metadata.num_rows, table

    with ThreadPoolExecutor(READERS, thread_name_prefix="open") as pool:
        tables = list(pool.map(table_of, files))
    for file, (rows, table) in zip(files, tables, strict=True):
        paths: list[str | None] = [None] * rows
        if table is not None and columns.has_path:
            paths = [value["path"] if value else None for value in table[columns.image].to_pylist()]
        names += [path or f"{file.name}#{row}" for row, path in enumerate(paths)]
        if table is not None and columns.label:
            words += table[columns.label].to_pylist()
    assert len(names) == count
    if columns.label is None or not words:
        return names, None, ()
    if not all(word is None or isinstance(word, int) for word in words):
        labels, class_names = numbered([None if word is None else str(word) for word in words])
        return names, labels, class_names
    labels = np.array([UNKNOWN if word is None else word for word in words], dtype=np.int64)
    return names, labels, _known(columns, int(labels.max()))


def many_labels(
    files: Sequence[File], columns: Columns, name: str, folder: Path, stamp: str
) -> Labels:
    """Classes of all rows, in a mapped file that is written once."""
    if columns.label is None:
        return None, ()
    key = digest([f"rows {VERSION} {columns.label}", stamp])
    index = open_index(folder, key)
    if index is None:
        _write(files, columns, name, folder, key)
        index = open_index(folder, key)
        assert index is not None
    return index.columns["label"], tuple(index.about["class_names"])


def _write(files: Sequence[File], columns: Columns, name: str, folder: Path, key: str) -> None:
    numbers: dict[str, int] = {}
    highest = UNKNOWN
    with IndexWriter(folder, key) as index:
        for file in track(files, f"reading the classes of {name}"):
            for words in _words(file, str(columns.label)):
                if any(isinstance(word, str) for word in words):
                    for word in words:
                        if word is not None:
                            numbers.setdefault(str(word), len(numbers))
                    rows = [UNKNOWN if w is None else numbers[str(w)] for w in words]
                else:
                    rows = [UNKNOWN if word is None else int(word) for word in words]
                    highest = max(highest, *rows)
                index.add({"label": rows})
        class_names = _known(columns, highest)
        if numbers:
            class_names = tuple(sorted_words(numbers))
            place = {word: i for i, word in enumerate(class_names)}
            index.translate("label", np.array([place[word] for word in numbers]))
        index.finish({"class_names": class_names})


def _words(file: File, label: str) -> Iterator[list[Any]]:
    with opened(file) as parquet:
        for batch in parquet.iter_batches(BATCH, columns=[label]):
            yield batch.column(0).to_pylist()


def _known(columns: Columns, highest: int) -> tuple[str, ...]:
    known = columns.class_names or tuple(str(i) for i in range(highest + 1))
    if highest >= len(known):
        raise UserError(
            f'Column "{columns.label}" goes up to {highest}, but the file names only '
            f"{len(known)} classes. Correct the class names in its metadata."
        )
    return known
