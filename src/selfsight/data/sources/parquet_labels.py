"""The label column of Parquet files: which one it is, and one or several classes per row."""

import json
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from jaxtyping import Int8, Int64

from selfsight.data.cache_files import cache_folder
from selfsight.data.cgroup_limits import free_memory
from selfsight.data.dataset_index import IndexWriter, load_or_write_index
from selfsight.data.sources.parquet_file import check_row_groups, open_table
from selfsight.data.sources.remote_files import File
from selfsight.data.sources.source import UNLABELED, clean, digest, encode_labels, sort_class_names
from selfsight.errors import UserError, list_first, suggest
from selfsight.terminal.progress import track

LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "coarse_label")
VERSION = 1  # of the index of labels
OPEN_THREADS = 16  # files opened at once
LABEL_BATCH = 1 << 16  # labels read at once
MAX_CLASS_NUMBER = 1_000_000  # a larger number is a name: an identifier, and not a count of classes
MAX_TABLE_BYTES = 1 << 33  # of images by classes


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


def read_features(schema: pa.Schema) -> dict[str, Any]:
    """Descriptions of the columns that the `datasets` library wrote."""
    try:
        metadata = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        features = metadata.get("info", {}).get("features", {})
        return {k: v for k, v in features.items() if isinstance(v, dict | list)}
    except (ValueError, AttributeError, RecursionError):
        return {}


def find_label_column(
    file: File, schema: pa.Schema, features: dict[str, Any], requested: str | None
) -> LabelColumn | None:
    """The requested column, or the first that is called or described as labels."""
    if requested is None:
        described = (
            name
            for name in schema.names
            if _class_label(features.get(name)) and schema.names.count(name) == 1
        )
        known = (name for name in LABEL_COLUMNS if schema.names.count(name) == 1)
        candidates = [c for c in dict.fromkeys([*known, *described]) if _holds_labels(schema, c)]
        if not candidates:
            return None
        name, *others = candidates
    elif schema.names.count(requested) != 1:
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
    names = (_class_label(features.get(name)) or {}).get("names")
    if isinstance(names, dict):
        names = [names[key] for key in sort_class_names(names)]
    class_names = tuple(map(clean, names)) if isinstance(names, list) else ()
    is_list = _is_list(schema.field(name).type)
    return LabelColumn(name, class_names, is_list, tuple(others))


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
    while True:
        if isinstance(feature, list) and feature:  # older files write [feature] for a list
            feature = feature[0]
        elif not isinstance(feature, dict):
            return None
        elif feature.get("_type") == "ClassLabel":
            return feature
        else:
            feature = feature.get("feature")


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
            f"--label-column {others} uses another."
        )
    if column.is_list:
        labels = _read_multilabels(_read_column(files, column.name), column, name)
    elif fingerprint is not None:
        labels = _map_labels(files, column, name, fingerprint)
    else:
        labels = _number_labels(_read_column(files, column.name), column, name)
    return labels._replace(notes=(*notes, *labels.notes))


def _read_column(files: Sequence[File], column: str) -> list[Any]:
    def read(file: File) -> list[Any]:
        return [value for values in _iterate_labels(file, column) for value in values]

    with ThreadPoolExecutor(OPEN_THREADS, thread_name_prefix="open") as pool:
        return [value for values in pool.map(read, files) for value in values]


def _number_labels(values: list[Any], column: LabelColumn, name: str) -> Labels:
    if not values:
        return Labels()
    if _are_class_numbers(values, column):
        labels = np.array([UNLABELED if v is None or v < 0 else v for v in values], dtype=np.int64)
        return Labels(labels=labels, class_names=_class_names(column, int(labels.max()), name))
    labels, class_names = encode_labels([_to_word(value) for value in values])
    return Labels(labels=labels, class_names=class_names)


def _are_class_numbers(values: Iterable[Any], column: LabelColumn) -> bool:
    """Whether values count classes from 0; numbers that do not are treated as words."""
    largest = UNLABELED
    for value in values:
        if value is not None:
            if not isinstance(value, int):
                return False
            largest = max(largest, value)
    return largest < MAX_CLASS_NUMBER or bool(column.class_names)


def _to_word(value: Any) -> str | None:
    """The class of a value; numbers below 0 are unlabeled."""
    unlabeled = value is None or (isinstance(value, int) and value < 0)
    return None if unlabeled else str(value)


def _read_multilabels(rows: list[Any], column: LabelColumn, name: str) -> Labels:
    """1 for each class in the list of a row, else 0; UNLABELED for all if a row has no list."""
    if _is_one_hot(rows):
        classes = max(len(row) for row in rows if row is not None)
        one_hot = [[UNLABELED] * classes if row is None else row for row in rows]
        note = f'Each list in column "{column.name}" has a 0 or 1 for each of {classes} classes.'
        names = _class_names(column, classes - 1, name)
        return Labels(multilabels=np.array(one_hot, np.int8), class_names=names, notes=(note,))
    values = {value for row in rows if row for value in row if value is not None}
    if _are_class_numbers(values, column):
        class_names = _class_names(column, max(values, default=UNLABELED), name)
        number = {value: value for value in values if value >= 0}
    else:
        words = {value: word for value in values if (word := _to_word(value)) is not None}
        class_names = tuple(sort_class_names(set(words.values())))
        places = {word: i for i, word in enumerate(class_names)}
        number = {value: places[word] for value, word in words.items()}
    if not class_names:
        return Labels()
    if len(rows) * len(class_names) > min(MAX_TABLE_BYTES, free_memory() // 2):
        raise UserError(
            f'Column "{column.name}" of {name} has {len(class_names):,} classes in the lists of '
            f"{len(rows):,} images, more than fit in memory. --label-column names another column."
        )
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
    as_words = False
    for file in track(files, f"reading the labels of {name}"):
        for values in _iterate_labels(file, column.name):
            as_words = as_words or not _are_class_numbers(values, column)
            if as_words:
                words = [_to_word(value) for value in values]
                for word in words:
                    if word is not None:
                        numbers.setdefault(word, len(numbers))
                labels = [UNLABELED if word is None else numbers[word] for word in words]
            else:
                labels = [UNLABELED if v is None or v < 0 else v for v in values]
                highest = max(highest, *labels)
            index.add({"label": labels})
    if as_words and highest > UNLABELED:
        raise UserError(
            f'Column "{column.name}" of {name} has labels up to {highest:,} in some rows, and '
            "words or very large numbers in others. --label-column names another column."
        )
    class_names = _class_names(column, highest, name)
    if as_words:
        class_names = tuple(sort_class_names(numbers))
        sorted_number = {name: i for i, name in enumerate(class_names)}
        index.translate("label", np.array([sorted_number[name] for name in numbers] or [0]))
    index.finish({"class_names": class_names})


def _iterate_labels(file: File, label: str) -> Iterator[list[Any]]:
    shared: dict[Any, Any] = {}  # equal words are stored once
    with open_table(file) as parquet:
        for number, group in enumerate(check_row_groups(file, parquet, label)):
            batch = min(LABEL_BATCH, group.batch)
            for read in parquet.iter_batches(batch, row_groups=[number], columns=[label]):
                values = read.column(0).to_pylist()
                yield [shared.setdefault(v, v) if isinstance(v, str) else v for v in values]


def _class_names(column: LabelColumn, highest: int, name: str) -> tuple[str, ...]:
    """Class names from the metadata, or the numbers up to the highest label."""
    names = column.class_names or tuple(str(i) for i in range(highest + 1))
    if highest >= len(names):
        raise UserError(
            f'Column "{column.name}" of {name} has labels up to {highest}, but the file names only '
            f"{len(names)} classes. Correct the class names in its metadata."
        )
    return names
