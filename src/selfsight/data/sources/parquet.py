"""Parquet files with a column of encoded images, as Hugging Face `datasets` writes them."""

import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from selfsight.data.image_limits import UnreadableError
from selfsight.data.remote import File, fingerprint_files
from selfsight.data.sources.parquet_labels import (
    OPEN_THREADS,
    LabelColumn,
    find_label_column,
    open_table,
    read_features,
    read_labels,
)
from selfsight.data.sources.source import LazyNames, Source
from selfsight.errors import UserError, list_first
from selfsight.progress import track

IMAGE_COLUMNS = ("image", "img", "picture")
MAX_ROWS_IN_MEMORY = 1_000_000  # beyond, names are generated and labels are memory-mapped
IMAGE_BATCH = 128  # images decompressed at once
RECENT_BATCHES = 8  # in memory, for threads that are a little late


class Columns(NamedTuple):
    """The columns of images and labels in a file."""

    image: str
    is_struct: bool  # struct{bytes, path}, else plain bytes
    has_path: bool
    label: LabelColumn | None


class _Footer(NamedTuple):
    columns: Columns
    row_groups: tuple[int, ...]  # number of rows of each


def open_parquet(files: Sequence[File], name: str, label_column: str | None = None) -> Source:
    """Open the images of one or more files, one after the other; `label_column` has the labels."""
    equal: dict[Columns, Columns] = {}  # one copy of class names that thousands of files repeat
    with ThreadPoolExecutor(OPEN_THREADS, thread_name_prefix="open") as pool:
        read = pool.map(lambda file: _read_footer(file, equal, label_column), files)
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
    in_memory = count <= MAX_ROWS_IN_MEMORY
    labels = read_labels(files, columns.label, name, None if in_memory else fingerprint)
    if in_memory and columns.has_path:
        names: Sequence[str] = _read_names(files, columns.image)
    else:
        names = LazyNames(count, reader.name)
    return Source(
        name=name,
        names=names,
        labels=labels.labels,
        multilabels=labels.multilabels,
        label_column=columns.label.name if columns.label else None,
        class_names=labels.class_names,
        read=reader.read,
        fingerprint=lambda: fingerprint,
        notes=labels.notes,
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
        with open_table(self.files[file]) as parquet:
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
        with open_table(self.files[file]) as parquet:
            group, first = 0, int(self.starts[file])
            while row >= first + parquet.metadata.row_group(group).num_rows:
                first += parquet.metadata.row_group(group).num_rows
                group += 1
            groups = range(group, parquet.num_row_groups)
            for batch in parquet.iter_batches(IMAGE_BATCH, row_groups=groups, columns=[self._leaf]):
                yield first, self._bytes(batch.column(0))
                first += len(batch)


def _read_footer(file: File, equal: dict[Columns, Columns], label_column: str | None) -> _Footer:
    try:
        with open_table(file) as parquet:
            metadata = parquet.metadata
            sizes = tuple(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
            columns = _find_columns(file, parquet.schema_arrow, label_column)
            return _Footer(equal.setdefault(columns, columns), sizes)
    except (OSError, pa.ArrowInvalid, UnreadableError) as error:
        raise UserError(f"{file.path} is not a readable Parquet file: {error}.") from error


def _find_columns(file: File, schema: pa.Schema, label_column: str | None) -> Columns:
    features = read_features(schema)
    annotated = [
        name for name, f in features.items() if isinstance(f, dict) and f.get("_type") == "Image"
    ]
    candidates = [*IMAGE_COLUMNS, *annotated, *schema.names]
    image = next((name for name in candidates if _holds_images(schema, name)), None)
    if image is None:
        raise UserError(
            f"{file.path} has no image column; its columns are {list_first(schema.names, 20)}. "
            'Expected is a column "image" of encoded images: struct{bytes, path} or binary.'
        )
    column_type = schema.field(image).type
    is_struct = pa.types.is_struct(column_type)
    has_path = is_struct and column_type.get_field_index("path") >= 0
    label = find_label_column(file, schema, features, label_column)
    return Columns(image, is_struct, has_path, label)


def _holds_images(schema: pa.Schema, name: str) -> bool:
    """Whether there is a column of this name whose type can hold encoded images."""
    if name not in schema.names:
        return False
    column_type = schema.field(name).type
    if pa.types.is_struct(column_type) and (at := column_type.get_field_index("bytes")) >= 0:
        column_type = column_type.field(at).type
    return pa.types.is_binary(column_type) or pa.types.is_large_binary(column_type)


def _read_names(files: Sequence[File], image: str) -> list[str]:
    """Paths of the images, or the file's name and the row's number where there is none."""

    def read_paths(file: File) -> list[str]:
        with open_table(file) as parquet:
            table = parquet.read(columns=[f"{image}.path"], use_threads=False)
        paths = [value["path"] if value else None for value in table[image].to_pylist()]
        return [path or f"{file.name}#{row}" for row, path in enumerate(paths)]

    with ThreadPoolExecutor(OPEN_THREADS, thread_name_prefix="open") as pool:
        return [name for names in pool.map(read_paths, files) for name in names]
