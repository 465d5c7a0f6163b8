"""Collect the scores of several encoders on the same test images: one result, and its arrays."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from selfsight.evals.detection import DetectionDataset
from selfsight.evals.labeled_data import LabeledData
from selfsight.evals.multilabel import MultilabelData
from selfsight.evals.per_image import (
    PerImage,
    Scores,
    confusion_matrix,
    paired_differences,
    score_each_class,
)
from selfsight.runs.encoders import UNTRAINED

MAX_CONFUSION = 100  # classes; a larger confusion matrix follows from the predictions
REPLICATES = "_replicates"  # end of the name of an array


def collect_scores(scores: Mapping[str, Scores], class_names: Sequence[str] = ()) -> dict[str, Any]:
    """Collect the numbers of the first encoder, and its differences from the others.

    Those of the untrained network are prefixed, and those of other encoders under `against`.
    """
    (_, first), *others = scores.items()
    result = _numbers(first)
    for name, found in others:
        numbers = {key: value for key, value in _numbers(found).items() if key != "n"}
        if name == UNTRAINED:
            result |= {f"{UNTRAINED}_{key}": value for key, value in numbers.items()}
        else:
            result.setdefault("against", {})[name] = numbers
    per_image = first.get("per_image")
    if per_image is None:
        return result
    result["differences"] = {
        name: {
            measure: difference._asdict()
            for measure, difference in paired_differences(per_image, found["per_image"]).items()
        }
        for name, found in others
    }
    if per_image.predictions is not None and per_image.y is not None:
        confusion = confusion_matrix(per_image.y, per_image.predictions, len(class_names))
        result["per_class"] = score_each_class(confusion, class_names)
        if len(class_names) <= MAX_CONFUSION:
            result["class_names"] = list(class_names)
            result["confusion"] = confusion.tolist()
    return result


def collect_arrays(scores: Mapping[str, Scores], fingerprint: str) -> dict[str, np.ndarray]:
    """Collect what each encoder (row) found for each test image (column)."""
    found = {name: s["per_image"] for name, s in scores.items() if "per_image" in s}
    if not found:
        return {}
    first = next(iter(found.values()))
    arrays = {"fingerprint": np.array(fingerprint), "encoders": np.array(list(found))}
    arrays["n"] = np.array(first.n)
    for measure in first.values:
        values = np.stack([per_image.values[measure] for per_image in found.values()])
        arrays[measure] = values.astype(bool if np.isin(values, (0, 1)).all() else np.float32)
    for measure in first.replicates:
        replicates = [per_image.replicates[measure] for per_image in found.values()]
        arrays[f"{measure}{REPLICATES}"] = np.stack(replicates)
    if first.y is not None and first.predictions is not None:
        arrays["labels"] = first.y.astype(np.int32)
        predictions = [per_image.predictions for per_image in found.values()]
        arrays["predictions"] = np.stack(predictions).astype(np.int32)
    return arrays


def read_per_image(arrays: Mapping[str, np.ndarray], row: int = 0) -> PerImage:
    """Read one encoder of `collect_arrays` back."""
    about = ("fingerprint", "encoders", "n", "labels", "predictions")
    measured = {name: array[row] for name, array in arrays.items() if name not in about}
    values = {k: v.astype(np.float64) for k, v in measured.items() if not k.endswith(REPLICATES)}
    replicates = {k.removesuffix(REPLICATES): v for k, v in measured.items() if k not in values}
    y = arrays["labels"].astype(np.int64) if "labels" in arrays else None
    predictions = None if y is None else arrays["predictions"][row].astype(np.int64)
    n = int(arrays.get("n", len(next(iter(values.values()), ()))))
    return PerImage(n=n, values=values, replicates=replicates, y=y, predictions=predictions)


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


def _hash(*content: Any) -> str:
    return hashlib.sha256(repr(content).encode(errors="replace")).hexdigest()[:16]


def _numbers(scores: Scores) -> Scores:
    return {name: value for name, value in scores.items() if name != "per_image"}
