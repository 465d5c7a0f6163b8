"""Read Parquet with trimaps in a column `mask`: 1 animal, 2 background, 3 border (Pets)."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from selfsight.data.decode import read_header
from selfsight.data.image_limits import UnreadableError
from selfsight.errors import UserError
from selfsight.evals.detection.annotations import (
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
        class_names = _class_names(table.schema) or tuple(map(str, range(max(labels) + 1)))
    images, masks = (_bytes(table[column]) for column in ("image", "mask"))
    sizes, instances = [], []
    for row, label in enumerate(labels):
        try:
            parsed = read_header(images[row].as_py())
            mask = np.asarray(Image.open(io.BytesIO(masks[row].as_py())))
        except (UnreadableError, OSError, TypeError) as error:
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
        try:
            with pq.ParquetFile(path, memory_map=True) as file:
                known = file.schema_arrow.names
                lacking = [column for column in columns if column not in known]
                if lacking:
                    raise UserError(
                        f"{path} has no column {' and no column '.join(lacking)}; it has "
                        f"{', '.join(known)}. Boxes are computed from the trimaps in `mask`."
                    )
                tables.append(file.read(columns=columns))
        except (OSError, pa.ArrowInvalid) as error:
            raise UserError(f"{path} is not a Parquet file that can be read: {error}.") from error
    table = pa.concat_tables(tables)
    if not len(table):
        raise UserError(f"{paths[0]} has no rows. Give a file with images.")
    return table


def _bytes(column: pa.ChunkedArray) -> Any:
    """The encoded images of a column: struct{bytes, path} or binary."""
    if pa.types.is_struct(column.type):
        return pa.chunked_array([chunk.field("bytes") for chunk in column.chunks])
    return column


def _class_names(schema: pa.Schema) -> tuple[str, ...]:
    parsed = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    label = parsed.get("info", {}).get("features", {}).get("label", {})
    return tuple(map(str, label.get("names") or ()))


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
