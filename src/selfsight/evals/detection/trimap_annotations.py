"""Read Parquet with trimaps in a column `mask`: 1 animal, 2 background, 3 border (Pets)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from selfsight.data.decoders.decode_image import read_header
from selfsight.data.decoders.pillow_formats import open_with_pillow
from selfsight.data.image_limits import UnreadableError
from selfsight.data.sources.parquet_file import check_row_groups, open_table
from selfsight.data.sources.parquet_labels import MAX_CLASS_NUMBER, find_label_column, read_features
from selfsight.data.sources.remote_files import File
from selfsight.errors import UserError
from selfsight.evals.detection.instances import (
    DetectionDataset,
    Instances,
    encode_mask,
    no_instances,
)

Classes = Literal["one", "label"]
ANIMAL, BACKGROUND, BORDER = 1, 2, 3


def read_trimaps(paths: Sequence[Path], *, classes: Classes = "one") -> DetectionDataset:
    """Read one object per image: animal and border, with the box of the mask.

    Its class is "animal", or that of the column `label` with classes="label".
    """
    table = _table(paths, ["image", "mask", *(["label"] if classes == "label" else [])])
    name = str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
    class_names: tuple[str, ...] = ("animal",)
    labels = [0] * len(table)
    if classes == "label":
        labels = table["label"].to_pylist()
        column = find_label_column(
            File(name), table.schema, read_features(table.schema), requested="label"
        )
        numbers = all(isinstance(label, int) and 0 <= label < MAX_CLASS_NUMBER for label in labels)
        if column is None or not numbers:
            raise UserError(
                f'Column "label" of {name} should have a class number from 0 in each row.'
            )
        class_names = column.class_names or tuple(map(str, range(max(labels) + 1)))
        if max(labels) >= len(class_names):
            raise UserError(
                f'Column "label" of {name} has labels up to {max(labels)}, but the file names only '
                f"{len(class_names)} classes. Correct the class names in its metadata."
            )
    images, masks = (_bytes(table[column]) for column in ("image", "mask"))
    sizes, instances = [], []
    for row, label in enumerate(labels):
        try:
            parsed = read_header(images[row].as_py())
            with open_with_pillow(masks[row].as_py()) as opened:
                mask = np.asarray(opened)
        except (UnreadableError, OSError, TypeError, SyntaxError) as error:
            raise UserError(
                f"Row {row} of {name} has an image or mask that cannot be read: {error}. "
                "Remove the row."
            ) from error
        _check(mask, parsed.height, parsed.width, f"Row {row} of {name}")
        sizes.append((parsed.height, parsed.width))
        instances.append(_instance(mask != BACKGROUND, label))
    return DetectionDataset(
        name=name,
        names=[f"row {row}" for row in range(len(table))],
        sizes=np.array(sizes, np.int64),
        instances=instances,
        class_names=class_names,
        read=lambda i: images[i].as_py(),
    )


def _table(paths: Sequence[Path], columns: list[str]) -> pa.Table:
    tables = []
    for path in paths:
        with open_table(File(str(path))) as file:
            known = file.schema_arrow.names
            lacking = [column for column in columns if known.count(column) != 1]
            if lacking:
                raise UserError(
                    f"{path} has no column {' and no column '.join(lacking)}; it has "
                    f"{', '.join(known)}. Boxes are computed from the trimaps in `mask`."
                )
            for column in columns:
                check_row_groups(File(str(path)), file, column)
            tables.append(file.read(columns=columns))
    try:
        table = pa.concat_tables(tables)
    except pa.ArrowException as error:
        raise UserError(f"{paths[0]} and the others have different columns: {error}.") from error
    if not len(table):
        raise UserError(f"{paths[0]} has no rows. Give a file with images.")
    return table


def _bytes(column: pa.ChunkedArray) -> Any:
    """The encoded images of a column: struct{bytes, path} or binary."""
    if pa.types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0:
        return pa.chunked_array([chunk.field("bytes") for chunk in column.chunks])
    return column


def _check(mask: np.ndarray, height: int, width: int, where: str) -> None:
    if mask.shape != (height, width):
        raise UserError(
            f"{where} has a mask of shape {mask.shape} for an image of {height} x {width}. "
            "They must be of one size."
        )
    if not set(np.unique(mask).tolist()) <= {ANIMAL, BACKGROUND, BORDER}:
        raise UserError(
            f"{where} has a mask with the values {np.unique(mask)[:6].tolist()}. Expected is a "
            "trimap: 1 for the object, 2 for the background, 3 for the border."
        )


def _instance(mask: np.ndarray, label: int) -> Instances:
    if not mask.any():
        return no_instances(masks=True)
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    return Instances(
        np.array([[columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]], np.float64),
        np.array([label], np.int64),
        np.zeros(1, bool),
        np.array([mask.sum()], np.float64),
        (encode_mask(mask),),
    )
