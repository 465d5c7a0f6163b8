"""Which images a result is of: fingerprints of the test images, and of whole labeled data sets."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from selfsight.data import ImageStore, Source
from selfsight.evals.detection import DetectionDataset
from selfsight.evals.labeled_data import LabeledData
from selfsight.evals.multilabel_data import MultilabelData
from selfsight.run_files.run_folder import Run
from selfsight.run_files.run_results import DataSet
from selfsight.runs.new_run_folder import file_name

LONGEST_NAME = 60  # characters, of a folder


def identify_images(run: Run, path: str, parts: Sequence[Source | ImageStore]) -> DataSet:
    """Identify images by their names, labels and classes; no file of them is read."""
    content: list[Any] = [tuple(parts[0].class_names)]
    for part in parts:
        labels = getattr(part, "multilabels", None)
        labels = part.labels if labels is None else labels
        content.append((_hash_names(part.names), _hash_labels(labels)))
    return _name(run, path, _hash(content), sum(map(len, parts)))


def identify_multilabel(run: Run, path: str, data: MultilabelData) -> DataSet:
    """Identify images that have several classes each."""
    train = (data.train, data.train_index, data.train_y)
    test = (data.test, data.test_index, data.test_y)
    content: list[Any] = [data.class_names]
    count = 0
    for images, index, y in (train, test):
        names = images.names if index is None else [images.names[i] for i in index.tolist()]
        content.append((_hash_names(names), _hash_labels(y)))
        count += len(names)
    return _name(run, path, _hash(content), count)


def identify_boxes(run: Run, path: str, train: DetectionDataset, test: DetectionDataset) -> DataSet:
    """Identify images by their names and objects."""
    content = (fingerprint_boxes(train), fingerprint_boxes(test))
    return _name(run, path, _hash(content), len(train) + len(test))


def fingerprint_test_images(data: LabeledData | MultilabelData) -> str:
    """Hash the names and labels of the test images: equal if they are the same images."""
    if isinstance(data, MultilabelData):
        images, index, labels = data.test, data.test_index, data.test_y
    else:
        images = data.train if data.test is None else data.test
        index = None
        if data.test is None:
            index = data.train_index if data.split is None else data.split.test
        labels = data.labels()[1]
    rows = range(len(images)) if index is None else index.tolist()
    return _hash([str(images.names[i]) for i in rows], data.class_names, labels.tolist())


def fingerprint_boxes(objects: DetectionDataset) -> str:
    """Hash the names of the test images and their objects: equal if they are the same images."""
    found = [(image.boxes.tolist(), image.labels.tolist()) for image in objects.instances]
    return _hash([str(name) for name in objects.names], objects.class_names, found)


def _name(run: Run, path: str, fingerprint: str, images: int) -> DataSet:
    """Name a data set after its path, or as an earlier result did."""
    last = Path(path.split(":")[-1])
    name = file_name(last.stem or last.resolve().stem or "data")[:LONGEST_NAME]
    end = f"-{fingerprint[:8]}"
    names = [f.name.removesuffix(end) for f in run.results.glob(f"*{end}") if f.is_dir()]
    return DataSet(min(names, default=name), fingerprint, images)


def _hash_names(names: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for name in names:
        digest.update(f"{name}\0".encode(errors="replace"))
    return digest.hexdigest()


def _hash_labels(labels: Tensor | np.ndarray | None) -> str | None:
    if labels is None:
        return None
    array = labels.cpu().numpy() if isinstance(labels, Tensor) else labels
    return hashlib.sha256(np.ascontiguousarray(array, dtype=np.int64).tobytes()).hexdigest()


def _hash(*content: Any) -> str:
    return hashlib.sha256(repr(content).encode(errors="replace")).hexdigest()[:16]
