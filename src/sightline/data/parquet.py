"""Parquet in the Hugging Face image convention, read in row order without holding a file."""

import bisect
import json
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sightline.data.decode import UnreadableError
from sightline.data.source import UNKNOWN, Source, listed, numbered, stamp_of
from sightline.errors import UserError

IMAGE_COLUMNS = ("image", "img", "picture")
LABEL_COLUMNS = ("label", "labels", "fine_label", "class")
BATCH = 128  # rows decompressed together
RECENT = 8  # batches kept, for threads that run a little behind


class Columns(NamedTuple):
    """Where a file keeps its pictures and classes."""

    image: str
    nested: bool  # struct{bytes, path}, else plain bytes
    has_path: bool
    label: str | None
    class_names: tuple[str, ...]


def open_parquet(files: Sequence[Path], name: str) -> Source:
    """The pictures of one or more files, one after the other."""
    columns = _columns(files[0])
    names: list[str] = []
    words: list[Any] = []
    for file in files:
        here = _columns(file)
        if here != columns:
            raise UserError(
                f"{file} and {files[0]} do not belong together: their columns or class names "
                "differ. Give one set at a time, for example by a pattern like "
                f'"{files[0].parent}/train-*.parquet".'
            )
        _read_small_columns(file, columns, names, words)
    labels, class_names = _labels(words, columns)
    rows = _Rows(files, columns)
    return Source(
        name=name,
        names=names,
        labels=labels,
        class_names=class_names,
        read=rows.read,
        stamp=lambda: stamp_of(files),
    )


class _Rows:
    """Bytes by row number; cheap for numbers that rise, as loading asks for them."""

    def __init__(self, files: Sequence[Path], columns: Columns) -> None:
        self.files, self.columns = files, columns
        counts = [pq.read_metadata(file).num_rows for file in files]
        self.starts = np.cumsum([0, *counts]).tolist()
        self.lock = threading.Lock()
        self.recent: deque[tuple[int, pa.Array]] = deque(maxlen=RECENT)  # first row, values
        self.stream: Iterator[tuple[int, pa.Array]] = iter(())
        self.file, self.next = -1, 0

    def read(self, row: int) -> bytes:
        """The encoded picture of one row."""
        with self.lock:
            value = self._value(row)
        if value is None:
            raise UnreadableError("the row has no bytes")
        return value

    def _value(self, row: int) -> bytes | None:
        for first, values in self.recent:
            if first <= row < first + len(values):
                return values[row - first].as_py()
        file = bisect.bisect_right(self.starts, row) - 1
        if file != self.file or row < self.next:
            self.stream = self._from(file, row)
        for first, values in self.stream:
            self.file, self.next = file, first + len(values)
            self.recent.append((first, values))
            if row < self.next:
                return values[row - first].as_py()
        raise IndexError(row)

    def _from(self, file: int, row: int) -> Iterator[tuple[int, pa.Array]]:
        """Batches from the row group that holds a row to the end of its file."""
        # Mapped, so that a row group of gigabytes is paged in, not read whole.
        with pq.ParquetFile(self.files[file], memory_map=True) as parquet:
            group, first = 0, self.starts[file]
            while row >= first + parquet.metadata.row_group(group).num_rows:
                first += parquet.metadata.row_group(group).num_rows
                group += 1
            leaf = f"{self.columns.image}.bytes" if self.columns.nested else self.columns.image
            groups = range(group, parquet.num_row_groups)
            for batch in parquet.iter_batches(BATCH, row_groups=groups, columns=[leaf]):
                values = batch.column(0)
                values = values.field("bytes") if self.columns.nested else values
                yield first, values
                first += len(batch)


def _columns(file: Path) -> Columns:
    try:
        schema = pq.read_schema(file)
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(f"{file} is not a Parquet file that can be read: {error}.") from error
    features = _features(schema)
    image = next(
        filter(None, (_fits(schema, name) for name in _candidates(schema, features))), None
    )
    if image is None:
        raise UserError(
            f"{file} has no image column; its columns are {listed(schema.names, 20)}. Expected is "
            'a column "image" of encoded pictures: struct{bytes, path} or binary.'
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
    """The column's name, if it can hold encoded pictures."""
    if name not in schema.names:
        return None
    kind = schema.field(name).type
    if pa.types.is_struct(kind) and (at := kind.get_field_index("bytes")) >= 0:
        kind = kind.field(at).type
    return name if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) else None


def _read_small_columns(file: Path, columns: Columns, names: list[str], words: list[Any]) -> None:
    wanted = [f"{columns.image}.path"] if columns.has_path else []
    wanted += [columns.label] if columns.label else []
    with pq.ParquetFile(file, memory_map=True) as parquet:
        count = parquet.metadata.num_rows
        table = parquet.read(columns=wanted) if wanted else None
    paths: list[str | None] = [None] * count
    if table is not None and columns.has_path:
        paths = [value["path"] if value else None for value in table[columns.image].to_pylist()]
    names += [path or f"{file.name}#{row}" for row, path in enumerate(paths)]
    if table is not None and columns.label:
        words += table[columns.label].to_pylist()


def _labels(words: list[Any], columns: Columns) -> tuple[np.ndarray | None, tuple[str, ...]]:
    if columns.label is None or not words:
        return None, ()
    if not all(word is None or isinstance(word, int) for word in words):
        return numbered([None if word is None else str(word) for word in words])
    labels = np.array([UNKNOWN if word is None else word for word in words], dtype=np.int64)
    known = columns.class_names or tuple(str(i) for i in range(labels.max() + 1))
    if labels.max() >= len(known):
        raise UserError(
            f'Column "{columns.label}" goes up to {labels.max()}, but the file names only '
            f"{len(known)} classes. Correct the class names in its metadata."
        )
    return labels, known
