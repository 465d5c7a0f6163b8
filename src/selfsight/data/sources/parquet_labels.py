"""The label column of Parquet files: which one it is, and one or several classes per row."""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Int8, Int64

from selfsight.data.dataset_index import IndexWriter, load_or_write_index
from selfsight.data.image_limits import check_regular
from selfsight.data.pixel_cache import cache_folder
from selfsight.data.remote import File
from selfsight.data.sources.source import UNLABELED, digest, encode_labels, sort_class_names
from selfsight.errors import UserError, list_first, suggest
from selfsight.progress import track

LABEL_COLUMNS = ("label", "labels", "fine_label", "class")
VERSION = 1  # of the index of labels
OPEN_THREADS = 16  # files opened at once
LABEL_BATCH = 1 << 16  # labels read at once


class LabelColumn(NamedTuple):
    """A column with the class of each row, or with a list of classes."""

    name: str
    class_names: tuple[str, ...]  # () if the file does not name them
    is_list: bool
    others: tuple[str, ...]  # columns that could be the labels too


class Labels(NamedTuple):
    """Labels of all rows: one class each, or for each class whether it is present."""

    labels: Int64[np.ndarray, " n"] | None = None
    multilabels: Int8[np.ndarray, "n c"] | None = None
    class_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def open_table(file: File) -> pq.ParquetFile:
    """Open a file; a local one is memory-mapped, so that large row groups are paged in."""
    if file.system is None:
        check_regular(file.path)
        return pq.ParquetFile(file.path, memory_map=True)
    return pq.ParquetFile(file.open(), pre_buffer=True)


def read_features(schema: pa.Schema) -> dict[str, Any]:
    """Descriptions of the columns that the `datasets` library wrote."""
    try:
        metadata = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        features = metadata.get("info", {}).get("features", {})
        return {k: v for k, v in features.items() if isinstance(v, dict | list)}
    except (ValueError, AttributeError):
        return {}


def find_label_column(
    file: File, schema: pa.Schema, features: dict[str, Any], requested: str | None
) -> LabelColumn | None:
    """The requested column, or the first that is called or described as labels."""
    if requested is None:
        described = (name for name in schema.names if _class_label(features.get(name)))
        known = (name for name in LABEL_COLUMNS if name in schema.names)
        candidates = [c for c in dict.fromkeys([*known, *described]) if _holds_labels(schema, c)]
        if not candidates:
            return None
        name, *others = candidates
    elif requested not in schema.names:
        raise UserError(
            f'{file.path} has no column "{requested}".{suggest(requested, schema.names)} '
            f"Its columns are {list_first(schema.names, 20)}."
        )
    elif not _holds_labels(schema, requested):
        raise UserError(
            f'Column "{requested}" of {file.path} is of type {schema.field(requested).type}, but '
            "labels are numbers, words, or lists of them. --label-column names another column."
        )
    else:
        name, others = requested, []
    names = (_class_label(features.get(name)) or {}).get("names") or ()
    if isinstance(names, dict):
        names = [names[key] for key in sorted(names, key=int)]
    is_list = _is_list(schema.field(name).type)
    return LabelColumn(name, tuple(map(str, names)), is_list, tuple(others))


def _holds_labels(schema: pa.Schema, name: str) -> bool:
    """Whether the type of a column is a number or a word, or a list of whole numbers or words."""
    kind = schema.field(name).type
    checks = [pa.types.is_integer, pa.types.is_boolean, pa.types.is_null]
    checks += [pa.types.is_string, pa.types.is_large_string]
    if _is_list(kind):  # a list of fractions, such as a box, is not a list of classes
        kind = kind.value_type
    else:
        checks.append(pa.types.is_floating)
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return any(check(kind) for check in checks)


def _is_list(kind: pa.DataType) -> bool:
    checks = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(check(kind) for check in checks)


def _class_label(feature: Any) -> dict[str, Any] | None:
    """The description of the classes of a column, or of the lists in it."""
    if isinstance(feature, list):  # older files write [feature] for a list
        return _class_label(feature[0]) if feature else None
    if not isinstance(feature, dict):
        return None
    return feature if feature.get("_type") == "ClassLabel" else _class_label(feature.get("feature"))


def read_labels(
    files: Sequence[File], column: LabelColumn | None, name: str, fingerprint: str | None
) -> Labels:
    """Read the labels of all rows.

    With a `fingerprint` of many files, single labels come from a memory-mapped file that is written
    once.
    """
    if column is None:
        return Labels()
    notes = []
    if column.others:
        others = " or ".join(column.others)
        notes.append(
            f'The labels of {name} are its column "{column.name}"; '
            f"`evaluate --label-column {others}` uses another."
        )
    if column.is_list:
        labels = _read_multilabels(_read_column(files, column.name), column)
    elif fingerprint is not None:
        labels = _map_labels(files, column, name, fingerprint)
    else:
        labels = _number_labels(_read_column(files, column.name), column)
    return labels._replace(notes=(*notes, *labels.notes))


def _read_column(files: Sequence[File], column: str) -> list[Any]:
    def read(file: File) -> list[Any]:
        return [value for values in _iterate_labels(file, column) for value in values]

    with ThreadPoolExecutor(OPEN_THREADS, thread_name_prefix="open") as pool:
        return [value for values in pool.map(read, files) for value in values]


def _number_labels(values: list[Any], column: LabelColumn) -> Labels:
    if not values:
        return Labels()
    if not all(value is None or isinstance(value, int) for value in values):
        labels, class_names = encode_labels([None if v is None else str(v) for v in values])
        return Labels(labels=labels, class_names=class_names)
    labels = np.array([UNLABELED if value is None else value for value in values], dtype=np.int64)
    return Labels(labels=labels, class_names=_class_names(column, int(labels.max())))


def _read_multilabels(rows: list[Any], column: LabelColumn) -> Labels:
    """1 for each class in the list of a row, else 0; UNLABELED for all if a row has no list."""
    if _is_one_hot(rows):
        classes = max(len(row) for row in rows if row is not None)
        one_hot = [[UNLABELED] * classes if row is None else row for row in rows]
        note = f'Each list in column "{column.name}" has a 0 or 1 for each of {classes} classes.'
        names = _class_names(column, classes - 1)
        return Labels(multilabels=np.array(one_hot, np.int8), class_names=names, notes=(note,))
    values = {value for row in rows if row for value in row if value is not None}
    if all(isinstance(value, int) for value in values):
        class_names = _class_names(column, max(values, default=UNLABELED))
        number = {value: value for value in values if value >= 0}
    else:
        class_names = tuple(sort_class_names({str(value) for value in values}))
        number = {value: class_names.index(str(value)) for value in values}
    table = np.zeros((len(rows), len(class_names)), np.int8)
    for i, row in enumerate(rows):
        table[i, [number[value] for value in row or () if value in number]] = 1
        if row is None:
            table[i] = UNLABELED
    return Labels(multilabels=table, class_names=class_names)


def _is_one_hot(rows: list[Any]) -> bool:
    """Whether lists have a 0 or 1 for each class: a list of classes names none of them twice."""
    lists = [row for row in rows if row is not None]
    zeros_and_ones = all(value in (0, 1) for row in lists for value in row)
    repeated = any(len(set(row)) < len(row) for row in lists)
    return zeros_and_ones and repeated and len({len(row) for row in lists}) == 1


def _map_labels(files: Sequence[File], column: LabelColumn, name: str, fingerprint: str) -> Labels:
    """Labels of all rows from a memory-mapped file that is written once."""
    key = digest([f"rows {VERSION} {column.name}", fingerprint])
    index = load_or_write_index(
        cache_folder(), key, lambda writer: _write_labels(files, column, name, writer)
    )
    return Labels(
        labels=index.columns["label"],
        class_names=tuple(index.metadata["class_names"]),
        notes=index.notes,
    )


def _write_labels(
    files: Sequence[File], column: LabelColumn, name: str, index: IndexWriter
) -> None:
    numbers: dict[str, int] = {}  # by class, in the order of appearance
    highest = UNLABELED
    for file in track(files, f"reading the labels of {name}"):
        for values in _iterate_labels(file, column.name):
            if any(isinstance(value, str) for value in values):
                for value in values:
                    if value is not None:
                        numbers.setdefault(str(value), len(numbers))
                labels = [UNLABELED if v is None else numbers[str(v)] for v in values]
            else:
                labels = [UNLABELED if value is None else int(value) for value in values]
                highest = max(highest, *labels)
            index.add({"label": labels})
    class_names = _class_names(column, highest)
    if numbers:
        class_names = tuple(sort_class_names(numbers))
        sorted_number = {name: i for i, name in enumerate(class_names)}
        index.translate("label", np.array([sorted_number[name] for name in numbers]))
    index.finish({"class_names": class_names})


def _iterate_labels(file: File, label: str) -> Iterator[list[Any]]:
    with open_table(file) as parquet:
        for batch in parquet.iter_batches(LABEL_BATCH, columns=[label]):
            yield batch.column(0).to_pylist()


def _class_names(column: LabelColumn, highest: int) -> tuple[str, ...]:
    """Class names from the metadata, or the numbers up to the highest label."""
    names = column.class_names or tuple(str(i) for i in range(highest + 1))
    if highest >= len(names):
        raise UserError(
            f'Column "{column.name}" has labels up to {highest}, but the file names only '
            f"{len(names)} classes. Correct the class names in its metadata."
        )
    return names
