"""Small image files for tests."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from selfsight.data import read_batches


def read_ragged(images, index):
    """A batch on the device of the images, read as training and evaluation read it."""
    (raw,) = read_batches(images, [(0, index)], images.device)
    return raw.images


def read_padded(images, index):
    """The pixels of a batch, padded, and the height and width of each image."""
    batch = read_ragged(images, index)
    return batch.padded(), batch.sizes


def pixels(height=12, width=16, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def png(array, **settings):
    return encoded(Image.fromarray(array), "PNG", **settings)


def encoded(image, kind, **settings):
    buffer = io.BytesIO()
    image.save(buffer, kind, **settings)
    return buffer.getvalue()


def write(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png(array))
    return path


def parquet(path, images, labels=None, class_names=(), *, plain=False, **settings):
    """A file in the Hugging Face convention; `plain` has a binary column instead of a struct."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [png(p) if isinstance(p, np.ndarray) else p for p in images]
    image = rows if plain else [{"bytes": b, "path": f"{i}.png"} for i, b in enumerate(rows)]
    columns = {"image": pa.array(image, pa.binary() if plain else None)}
    features = {"image": {"_type": "Image"}}
    if labels is not None:
        columns["label"] = pa.array(labels)
        if class_names:
            features["label"] = {"names": list(class_names), "_type": "ClassLabel"}
    metadata = json.dumps({"info": {"features": features}})
    table = pa.table(columns).replace_schema_metadata({"huggingface": metadata})
    pq.write_table(table, path, **settings)
    return path
