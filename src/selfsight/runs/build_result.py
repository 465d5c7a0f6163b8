"""Collect the scores of several encoders on the same test images: one result, and its arrays."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from selfsight.encoders.untrained_network import UNTRAINED
from selfsight.evals.encoder_differences import paired_differences
from selfsight.evals.prediction_scores import PerImage, Scores, confusion_matrix, score_each_class

MAX_CONFUSION = 100  # classes; a larger confusion matrix follows from the predictions
REPLICATES = "_replicates"  # end of the name of an array


def collect_scores(scores: Mapping[str, Scores], class_names: Sequence[str] = ()) -> dict[str, Any]:
    """Collect the numbers of the first encoder, and its differences from the others.

    Numbers of the untrained network have a prefix; those of other encoders are under `against`.
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
    """Collect the outcome of each encoder (row) for each test image (column)."""
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


def _numbers(scores: Scores) -> Scores:
    return {name: value for name, value in scores.items() if name != "per_image"}
