"""Parquet in the Hugging Face image convention, read in row order without holding a file."""

import json
import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from selfsight.data.decode import UnreadableError
from selfsight.data.pixel_cache import default_folder
from selfsight.data.remote import File, stamp_of
from selfsight.data.source import Computed, Source, listed
from selfsight.data.sources.parquet_labels import (
    READERS,
    Columns,
    few_labels,
    many_labels,
    opened,
)
from selfsight.errors import UserError
from selfsight.progress import track

IMAGE_COLUMNS = ("image", "img", "image")
LABEL_COLUMNS = ("label", "labels", "fine_label", "class")
MANY = 1_000_000  # rows, from which names are made up and labels lie in a mapped file
BATCH = 128  # rows decompressed together
RECENT = 8  # batches kept, for threads that run a little behind


def open_parquet(
    files: Sequence[File], name: str, *, cache_dir: str | Path | None = None
) -> Source:
    """The images of one or more files, one after the other."""
    alike: dict[Columns, Columns] = {}  # one copy of class names that thousands of files repeat
    with ThreadPoolExecutor(READERS, thread_name_prefix="open") as pool:
        made = pool.map(lambda file: _footer(file, alike), files)
        footers = list(track(made, f"opening {name}", total=len(files)))
    columns = footers[0].columns
    for file, footer in zip(files, footers, strict=True):
        if footer.columns != columns:
            raise UserError(
                f"{file.path} and {files[0].path} do not belong together: their columns or class "
                "names differ. Give one set at a time, for example by a pattern like "
                f'"{os.path.dirname(files[0].path)}/train-*.parquet".'
            )
    rows = Rows(files, footers)
    count = int(rows.starts[-1])
    if not count:
        raise UserError(
            f"{name} has no images: no row in {len(files)} Parquet file(s). Check that the files "
            "were written to the end."
        )
    stamp = stamp_of(files)
    if count > MANY:
        folder = Path(cache_dir) if cache_dir else default_folder()
        labels, class_names = many_labels(files, columns, name, folder, stamp)
        names: Sequence[str] = Computed(count, rows.name)
    else:
        names, labels, class_names = few_labels(files, columns, count)
    return Source(
        name=name,
        names=names,
        labels=labels,
        class_names=class_names,
        read=rows.read,
        stamp=lambda: stamp,
        shards=np.cumsum([0, *(n for footer in footers for n in footer.groups)]),
        group=rows.group,
        read_run=rows.read_run,
    )


class _Footer(NamedTuple):
    columns: Columns
    groups: tuple[int, ...]  # rows of each row group


def _footer(file: File, alike: dict[Columns, Columns]) -> _Footer:
    try:
        with opened(file) as parquet:
            told = parquet.metadata
            groups = tuple(told.row_group(i).num_rows for i in range(told.num_row_groups))
            columns = _columns(file, parquet.schema_arrow)
            return _Footer(alike.setdefault(columns, columns), groups)
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(f"{file.path} is not a Parquet file that can be read: {error}.") from error


class Rows:
    """Bytes by row number: runs of neighbors, and single rows that rise, as loading asks."""

    def __init__(self, files: Sequence[File], footers: Sequence[_Footer]) -> None:
        self.files, self.columns = files, footers[0].columns
        self.group = max((n for footer in footers for n in footer.groups), default=0)
        self.starts = np.cumsum([0, *(sum(footer.groups) for footer in footers)])
        self.lock = threading.Lock()
        self.recent: deque[tuple[int, pa.Array]] = deque(maxlen=RECENT)  # first row, values
        self.stream: Iterator[tuple[int, pa.Array]] = iter(())
        self.file, self.next = -1, 0

    def name(self, row: int) -> str:
        """What a row is called if it has no name of its own."""
        file = self._file(row)
        return f"{self.files[file].name}#{row - self.starts[file]}"

    def read(self, row: int) -> bytes:
        """The encoded image of one row."""
        with self.lock:
            value = self._value(row)
        if value is None:
            raise UnreadableError("the row has no bytes")
        return value

    def read_run(self, first: int, behind: int) -> list[bytes]:
        """The encoded images of neighbors in one file; empty bytes where there are none."""
        file = self._file(first)
        with opened(self.files[file]) as parquet:
            begin, at = first, int(self.starts[file])
            groups: list[int] = []
            for group in range(parquet.num_row_groups):
                end = at + parquet.metadata.row_group(group).num_rows
                if at < behind and first < end:
                    begin = at if not groups else begin
                    groups.append(group)
                at = end
            table = parquet.read_row_groups(groups, columns=[self._leaf], use_threads=False)
        column = table.column(0).slice(first - begin, behind - first)
        values = [self._bytes(chunk) for chunk in column.chunks]
        return [value or b"" for chunk in values for value in chunk.to_pylist()]

    @property
    def _leaf(self) -> str:
        return f"{self.columns.image}.bytes" if self.columns.nested else self.columns.image

    def _bytes(self, values: pa.Array) -> pa.Array:
        return values.field("bytes") if self.columns.nested else values

    def _file(self, row: int) -> int:
        return int(np.searchsorted(self.starts, row, side="right")) - 1

    def _value(self, row: int) -> bytes | None:
        for first, values in self.recent:
            if first <= row < first + len(values):
                return values[row - first].as_py()
        file = self._file(row)
        near = self.next <= row < self.next + 2 * self.group  # else what lies between is skipped
        if file != self.file or not near:
            self.stream = self._from(file, row)
        for first, values in self.stream:
            self.file, self.next = file, first + len(values)
            self.recent.append((first, values))
            if row < self.next:
                return values[row - first].as_py()
        raise IndexError(row)

    def _from(self, file: int, row: int) -> Iterator[tuple[int, pa.Array]]:
        """Batches from the row group that holds a row to the end of its file."""
        with opened(self.files[file]) as parquet:
            group, first = 0, int(self.starts[file])
            while row >= first + parquet.metadata.row_group(group).num_rows:
                first += parquet.metadata.row_group(group).num_rows
                group += 1
            groups = range(group, parquet.num_row_groups)
            for batch in parquet.iter_batches(BATCH, row_groups=groups, columns=[self._leaf]):
                yield first, self._bytes(batch.column(0))
                first += len(batch)


def _columns(file: File, schema: pa.Schema) -> Columns:
    features = _features(schema)
    image = next(
        filter(None, (_fits(schema, name) for name in _candidates(schema, features))), None
    )
    if image is None:
        raise UserError(
            f"{file.path} has no image column; its columns are {listed(schema.names, 20)}. "
            'Expected is a column "image" of encoded images: struct{bytes, path} or binary.'
        )
    kind = schema.field(image).type
    label = next((c for c in LABEL_COLUMNS if c in schema.names), None) or next(
        (c for c, f in features.items() if f.get("_type") == "ClassLabel"), None
    )
    names = features.get(label or "", {}).get("names") or ()
    if isinstance(names, dict):
        names = [names[key] for key in sorted(names, key=int)]
    nested = pa.types.is_struct(kind)
    has_path = nested and kind.get_field_index("path") >= 0
    return Columns(image, nested, has_path, label, tuple(map(str, names)))


def _features(schema: pa.Schema) -> dict[str, Any]:
    """What the `datasets` library wrote about the columns."""
    try:
        told = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        features = told.get("info", {}).get("features", {})
        return {k: v for k, v in features.items() if isinstance(v, dict)}
    except (ValueError, AttributeError):
        return {}


def _candidates(schema: pa.Schema, features: dict[str, Any]) -> list[str]:
    told = [c for c, f in features.items() if f.get("_type") == "Image"]
    return [*IMAGE_COLUMNS, *told, *schema.names]


def _fits(schema: pa.Schema, name: str) -> str | None:
    """The column's name, if it can hold encoded images."""
    if name not in schema.names:
        return None
    kind = schema.field(name).type
    if pa.types.is_struct(kind) and (at := kind.get_field_index("bytes")) >= 0:
        kind = kind.field(at).type
    return name if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) else None
