"""Parquet files with a column of encoded images, as Hugging Face `datasets` writes them."""

import json
import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from selfsight.data.dataset_index import IndexWriter, load_or_write_index
from selfsight.data.decode import UnreadableError
from selfsight.data.pixel_cache import cache_folder
from selfsight.data.remote import File, fingerprint_files
from selfsight.data.sources.source import (
    UNLABELED,
    LazyNames,
    Source,
    digest,
    encode_labels,
    sort_class_names,
)
from selfsight.errors import UserError, list_first
from selfsight.progress import track

IMAGE_COLUMNS = ("image", "img", "picture")
LABEL_COLUMNS = ("label", "labels", "fine_label", "class")
VERSION = 1  # of the index of labels
OPEN_THREADS = 16  # files opened at once
MAX_ROWS_IN_MEMORY = 1_000_000  # beyond, names are generated and labels are memory-mapped
LABEL_BATCH = 1 << 16  # labels read at once
IMAGE_BATCH = 128  # images decompressed at once
RECENT_BATCHES = 8  # in memory, for threads that are a little late


class Columns(NamedTuple):
    """The columns of images and labels in a file."""

    image: str
    is_struct: bool  # struct{bytes, path}, else plain bytes
    has_path: bool
    label: str | None
    class_names: tuple[str, ...]


class _Footer(NamedTuple):
    columns: Columns
    row_groups: tuple[int, ...]  # number of rows of each


def open_parquet(files: Sequence[File], name: str) -> Source:
    """Open the images of one or more files, one after the other."""
    equal: dict[Columns, Columns] = {}  # one copy of class names that thousands of files repeat
    with ThreadPoolExecutor(OPEN_THREADS, thread_name_prefix="open") as pool:
        read = pool.map(lambda file: _read_footer(file, equal), files)
        footers = list(track(read, f"opening {name}", total=len(files)))
    columns = footers[0].columns
    for file, footer in zip(files, footers, strict=True):
        if footer.columns != columns:
            raise UserError(
                f"{file.path} and {files[0].path} are not one data set: their columns or class "
                "names differ. Give one set at a time, for example by a pattern like "
                f'"{os.path.dirname(files[0].path)}/train-*.parquet".'
            )
    reader = RowReader(files, footers)
    count = int(reader.starts[-1])
    if not count:
        raise UserError(
            f"{name} has no images: no row in {len(files)} Parquet file(s). Check that the files "
            "are complete."
        )
    fingerprint = fingerprint_files(files)
    if count > MAX_ROWS_IN_MEMORY:
        labels, class_names, notes = _map_labels(files, columns, name, fingerprint)
        names: Sequence[str] = LazyNames(count, reader.name)
    else:
        names, labels, class_names = _read_labels(files, columns, count)
        notes = ()
    return Source(
        name=name,
        names=names,
        labels=labels,
        class_names=class_names,
        read=reader.read,
        fingerprint=lambda: fingerprint,
        notes=notes,
        shard_starts=np.cumsum([0, *(n for footer in footers for n in footer.row_groups)]),
        chunk_size=reader.largest_row_group,
        read_range=reader.read_range,
    )


class RowReader:
    """Reads encoded images by row number: ranges of neighbors, or single rows in rising order."""

    def __init__(self, files: Sequence[File], footers: Sequence[_Footer]) -> None:
        self.files, self.columns = files, footers[0].columns
        self.largest_row_group = max((n for f in footers for n in f.row_groups), default=0)
        self.starts = np.cumsum([0, *(sum(footer.row_groups) for footer in footers)])
        self.lock = threading.Lock()
        self.recent: deque[tuple[int, pa.Array]] = deque(maxlen=RECENT_BATCHES)  # first row, values
        self.stream: Iterator[tuple[int, pa.Array]] = iter(())
        self.file, self.next_row = -1, 0

    def name(self, row: int) -> str:
        """Name of a row that has no path: the file's name and the row's number in it."""
        file = self._file_of(row)
        return f"{self.files[file].name}#{row - self.starts[file]}"

    def read(self, row: int) -> bytes:
        """Read the encoded image of one row."""
        with self.lock:
            value = self._read_value(row)
        if value is None:
            raise UnreadableError("the row has no bytes")
        return value

    def read_range(self, first: int, end: int) -> list[bytes]:
        """Read consecutive images of one file; empty bytes where a row has none."""
        file = self._file_of(first)
        with _open_file(self.files[file]) as parquet:
            begin, at = first, int(self.starts[file])
            groups: list[int] = []
            for group in range(parquet.num_row_groups):
                group_end = at + parquet.metadata.row_group(group).num_rows
                if at < end and first < group_end:
                    begin = at if not groups else begin
                    groups.append(group)
                at = group_end
            table = parquet.read_row_groups(groups, columns=[self._leaf], use_threads=False)
        column = table.column(0).slice(first - begin, end - first)
        values = [self._bytes(chunk) for chunk in column.chunks]
        return [value or b"" for chunk in values for value in chunk.to_pylist()]

    @property
    def _leaf(self) -> str:
        return f"{self.columns.image}.bytes" if self.columns.is_struct else self.columns.image

    def _bytes(self, values: pa.Array) -> pa.Array:
        return values.field("bytes") if self.columns.is_struct else values

    def _file_of(self, row: int) -> int:
        return int(np.searchsorted(self.starts, row, side="right")) - 1

    def _read_value(self, row: int) -> bytes | None:
        for first, values in self.recent:
            if first <= row < first + len(values):
                return values[row - first].as_py()
        file = self._file_of(row)
        # Read on if the row is close; otherwise skip the row groups in between.
        is_close = self.next_row <= row < self.next_row + 2 * self.largest_row_group
        if file != self.file or not is_close:
            self.stream = self._read_from(file, row)
        for first, values in self.stream:
            self.file, self.next_row = file, first + len(values)
            self.recent.append((first, values))
            if row < self.next_row:
                return values[row - first].as_py()
        raise IndexError(row)

    def _read_from(self, file: int, row: int) -> Iterator[tuple[int, pa.Array]]:
        """Yield batches from the row group that holds a row to the end of its file."""
        with _open_file(self.files[file]) as parquet:
            group, first = 0, int(self.starts[file])
            while row >= first + parquet.metadata.row_group(group).num_rows:
                first += parquet.metadata.row_group(group).num_rows
                group += 1
            groups = range(group, parquet.num_row_groups)
            for batch in parquet.iter_batches(IMAGE_BATCH, row_groups=groups, columns=[self._leaf]):
                yield first, self._bytes(batch.column(0))
                first += len(batch)


def _open_file(file: File) -> pq.ParquetFile:
    """Open a file; a local one is memory-mapped, so that large row groups are paged in."""
    if file.system is None:
        return pq.ParquetFile(file.path, memory_map=True)
    return pq.ParquetFile(file.open(), pre_buffer=True)


def _read_footer(file: File, equal: dict[Columns, Columns]) -> _Footer:
    try:
        with _open_file(file) as parquet:
            metadata = parquet.metadata
            sizes = tuple(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
            columns = _find_columns(file, parquet.schema_arrow)
            return _Footer(equal.setdefault(columns, columns), sizes)
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(f"{file.path} is not a readable Parquet file: {error}.") from error


def _find_columns(file: File, schema: pa.Schema) -> Columns:
    features = _read_features(schema)
    annotated = [name for name, f in features.items() if f.get("_type") == "Image"]
    candidates = [*IMAGE_COLUMNS, *annotated, *schema.names]
    image = next((name for name in candidates if _holds_images(schema, name)), None)
    if image is None:
        raise UserError(
            f"{file.path} has no image column; its columns are {list_first(schema.names, 20)}. "
            'Expected is a column "image" of encoded images: struct{bytes, path} or binary.'
        )
    column_type = schema.field(image).type
    label = next((c for c in LABEL_COLUMNS if c in schema.names), None) or next(
        (c for c, f in features.items() if f.get("_type") == "ClassLabel"), None
    )
    names = features.get(label or "", {}).get("names") or ()
    if isinstance(names, dict):
        names = [names[key] for key in sorted(names, key=int)]
    is_struct = pa.types.is_struct(column_type)
    has_path = is_struct and column_type.get_field_index("path") >= 0
    return Columns(image, is_struct, has_path, label, tuple(map(str, names)))


def _read_features(schema: pa.Schema) -> dict[str, Any]:
    """Descriptions of the columns that the `datasets` library wrote."""
    try:
        metadata = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        features = metadata.get("info", {}).get("features", {})
        return {k: v for k, v in features.items() if isinstance(v, dict)}
    except (ValueError, AttributeError):
        return {}


def _holds_images(schema: pa.Schema, name: str) -> bool:
    """Whether there is a column of this name whose type can hold encoded images."""
    if name not in schema.names:
        return False
    column_type = schema.field(name).type
    if pa.types.is_struct(column_type) and (at := column_type.get_field_index("bytes")) >= 0:
        column_type = column_type.field(at).type
    return pa.types.is_binary(column_type) or pa.types.is_large_binary(column_type)


def _read_labels(
    files: Sequence[File], columns: Columns, count: int
) -> tuple[list[str], np.ndarray | None, tuple[str, ...]]:
    """Read names and labels of all rows into memory."""
    names: list[str] = []
    values: list[Any] = []
    needed = [f"{columns.image}.path"] if columns.has_path else []
    needed += [columns.label] if columns.label else []

    def read_table(file: File) -> tuple[int, pa.Table | None]:
        with _open_file(file) as parquet:
            table = parquet.read(columns=needed, use_threads=False) if needed else None
            return parquet.metadata.num_rows, table

    with ThreadPoolExecutor(OPEN_THREADS, thread_name_prefix="open") as pool:
        tables = list(pool.map(read_table, files))
    for file, (rows, table) in zip(files, tables, strict=True):
        paths: list[str | None] = [None] * rows
        if table is not None and columns.has_path:
            paths = [value["path"] if value else None for value in table[columns.image].to_pylist()]
        names += [path or f"{file.name}#{row}" for row, path in enumerate(paths)]
        if table is not None and columns.label:
            values += table[columns.label].to_pylist()
    assert len(names) == count
    if columns.label is None or not values:
        return names, None, ()
    if not all(value is None or isinstance(value, int) for value in values):
        labels, class_names = encode_labels([None if v is None else str(v) for v in values])
        return names, labels, class_names
    labels = np.array([UNLABELED if value is None else value for value in values], dtype=np.int64)
    return names, labels, _class_names(columns, int(labels.max()))


def _map_labels(
    files: Sequence[File], columns: Columns, name: str, fingerprint: str
) -> tuple[np.ndarray | None, tuple[str, ...], tuple[str, ...]]:
    """Labels of all rows from a memory-mapped file that is written once; class names; notes."""
    if columns.label is None:
        return None, (), ()
    key = digest([f"rows {VERSION} {columns.label}", fingerprint])
    index = load_or_write_index(
        cache_folder(), key, lambda writer: _write_labels(files, columns, name, writer)
    )
    return index.columns["label"], tuple(index.metadata["class_names"]), index.notes


def _write_labels(files: Sequence[File], columns: Columns, name: str, index: IndexWriter) -> None:
    numbers: dict[str, int] = {}  # by class, in the order of appearance
    highest = UNLABELED
    for file in track(files, f"reading the labels of {name}"):
        for values in _iterate_labels(file, str(columns.label)):
            if any(isinstance(value, str) for value in values):
                for value in values:
                    if value is not None:
                        numbers.setdefault(str(value), len(numbers))
                labels = [UNLABELED if v is None else numbers[str(v)] for v in values]
            else:
                labels = [UNLABELED if value is None else int(value) for value in values]
                highest = max(highest, *labels)
            index.add({"label": labels})
    class_names = _class_names(columns, highest)
    if numbers:
        class_names = tuple(sort_class_names(numbers))
        sorted_number = {name: i for i, name in enumerate(class_names)}
        index.translate("label", np.array([sorted_number[name] for name in numbers]))
    index.finish({"class_names": class_names})


def _iterate_labels(file: File, label: str) -> Iterator[list[Any]]:
    with _open_file(file) as parquet:
        for batch in parquet.iter_batches(LABEL_BATCH, columns=[label]):
            yield batch.column(0).to_pylist()


def _class_names(columns: Columns, highest: int) -> tuple[str, ...]:
    """Class names from the metadata, or the numbers up to the highest label."""
    names = columns.class_names or tuple(str(i) for i in range(highest + 1))
    if highest >= len(names):
        raise UserError(
            f'Column "{columns.label}" has labels up to {highest}, but the file names only '
            f"{len(names)} classes. Correct the class names in its metadata."
        )
    return names
