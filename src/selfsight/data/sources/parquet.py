"""Parquet files with a column of encoded images, as Hugging Face `datasets` writes them."""

import functools
import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from selfsight.data.cgroup_limits import available_cpus
from selfsight.data.image_limits import UnreadableError
from selfsight.data.sources.parquet_file import ParquetError, RowGroup, check_row_groups, open_table
from selfsight.data.sources.parquet_labels import (
    OPEN_THREADS,
    LabelColumn,
    find_label_column,
    read_features,
    read_labels,
)
from selfsight.data.sources.remote_files import File, fingerprint_files
from selfsight.data.sources.source import LazyNames, Source
from selfsight.errors import UserError, list_first
from selfsight.terminal.progress import track

IMAGE_COLUMNS = ("image", "img", "picture")
MAX_ROWS_IN_MEMORY = 1_000_000  # beyond, names are generated and labels are memory-mapped
IMAGE_BATCH = 128  # images decompressed at once
# In memory, for threads that are a little late: there is one for each core, which reads 64 rows.
RECENT_ROWS_PER_CORE, RECENT_BYTES = 256, 1 << 30
MIN_RECENT_ROWS = 1024
RECENT_FOOTERS = 64


class Columns(NamedTuple):
    """The columns of images and labels in a file."""

    image: str
    is_struct: bool  # struct{bytes, path}, else plain bytes
    has_path: bool
    label: LabelColumn | None


class _Footer(NamedTuple):
    columns: Columns
    row_groups: tuple[RowGroup, ...]


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
    for values in (labels.labels, labels.multilabels):
        if values is not None and len(values) != count:
            raise ParquetError(
                f"{name} is damaged: {len(values):,} labels could be read, but its footers claim "
                f"{count:,} rows. Write the files again."
            )
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
        shard_starts=np.cumsum([0, *(g.rows for footer in footers for g in footer.row_groups)]),
        chunk_size=reader.largest_row_group,
        read_range=reader.read_range,
    )


class RowReader:
    """Reads encoded images by row number: ranges of neighbors, or single rows in rising order."""

    def __init__(self, files: Sequence[File], footers: Sequence[_Footer]) -> None:
        self.files, self.columns = files, footers[0].columns
        self.row_groups = [footer.row_groups for footer in footers]
        self.largest_row_group = max((g.rows for f in footers for g in f.row_groups), default=0)
        counts = [sum(g.rows for g in footer.row_groups) for footer in footers]
        self.starts = np.cumsum([0, *counts], dtype=np.int64)
        self.lock = threading.Lock()
        self.recent: deque[tuple[int, pa.Array]] = deque()  # first row, values
        self.recent_rows = max(MIN_RECENT_ROWS, RECENT_ROWS_PER_CORE * available_cpus())
        self.stream: Iterator[tuple[int, pa.Array]] = iter(())
        self.file, self.next_row = -1, 0
        # Large values that occur many times would fill the memory if each row had a copy.
        self.as_dictionary = [any(g.batch < IMAGE_BATCH for g in f.row_groups) for f in footers]
        # A footer of many row groups takes longer to parse than an image to read.
        self.metadata = functools.lru_cache(RECENT_FOOTERS)(self._read_metadata)

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
        groups, start = self._groups_of(file, first, end)
        images: list[bytes] = []
        for batch in self._read_batches(file, groups):
            skipped = max(0, first - start)
            images += (value or b"" for value in _to_list(batch[skipped : end - start]))
            start += len(batch)
        if len(images) != end - first:
            raise UnreadableError("its row group has fewer rows than the footer claims")
        return images

    def _groups_of(self, file: int, first: int, end: int) -> tuple[range, int]:
        """The row groups that hold some rows of a file, and the first row of these groups."""
        counts = [group.rows for group in self.row_groups[file]]
        starts = self.starts[file] + np.cumsum([0, *counts], dtype=np.int64)
        low, high = (int(np.searchsorted(starts, row, side="right")) for row in (first, end - 1))
        return range(low - 1, high), int(starts[low - 1])

    def _read_batches(self, file: int, groups: range) -> Iterator[pa.Array]:
        leaf = self._leaf
        with open_table(
            self.files[file],
            self.metadata(file),
            dictionary=leaf if self.as_dictionary[file] else None,
        ) as parquet:
            for group in groups:
                for batch in parquet.iter_batches(
                    IMAGE_BATCH, row_groups=[group], columns=[leaf], use_threads=False
                ):
                    yield self._bytes(batch.column(0))

    def _read_metadata(self, file: int) -> pq.FileMetaData:
        with open_table(self.files[file]) as parquet:
            return parquet.metadata

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
        self.file = -1  # if reading fails, the next row starts again
        for first, values in self.stream:
            self.next_row = first + len(values)
            self.recent.append((first, values))
            self._forget()
            if row < self.next_row:
                self.file = file
                return values[row - first].as_py()
        raise UnreadableError("its row group has fewer rows than the footer claims")

    def _forget(self) -> None:
        """Drop the oldest batches: threads that are late need no more than a few."""
        size = sum(values.nbytes for _, values in self.recent)
        while len(self.recent) > 1 and (
            size > RECENT_BYTES or sum(len(v) for _, v in self.recent) > self.recent_rows
        ):
            size -= self.recent.popleft()[1].nbytes

    def _read_from(self, file: int, row: int) -> Iterator[tuple[int, pa.Array]]:
        """Yield batches from the row group that holds a row to the end of its file."""
        groups, first = self._groups_of(file, row, row + 1)
        for values in self._read_batches(file, range(groups.start, len(self.row_groups[file]))):
            yield first, values
            first += len(values)


def _to_list(values: pa.Array) -> list[bytes | None]:
    """The values; those that are equal share their memory if they are in a dictionary."""
    if not pa.types.is_dictionary(values.type):
        return values.to_pylist()
    distinct = values.dictionary.to_pylist()
    return [None if i is None else distinct[i] for i in values.indices.to_pylist()]


def _read_footer(file: File, equal: dict[Columns, Columns], label_column: str | None) -> _Footer:
    with open_table(file) as parquet:
        columns = _find_columns(file, parquet.schema_arrow, label_column)
        if columns.label is not None:
            check_row_groups(file, parquet, columns.label.name)
        row_groups = check_row_groups(file, parquet, columns.image)
        return _Footer(equal.setdefault(columns, columns), row_groups)


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
    if schema.names.count(name) != 1:
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
        return [str(path or f"{file.name}#{row}") for row, path in enumerate(paths)]

    with ThreadPoolExecutor(OPEN_THREADS, thread_name_prefix="open") as pool:
        return [name for names in pool.map(read_paths, files) for name in names]
