"""Average precision of detections on resamples of the test images, for its interval.

pycocotools matches detections with objects image by image, so a resample needs no new matching:
it counts each image as often as it was drawn. The numbers equal those of pycocotools on a set that
repeats the images, except for the order of equal scores within an image.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float64, Int, Int32

from selfsight.evals.bootstrap_intervals import MAX_INDICES, resampled_counts
from selfsight.evals.detection.coco_ap import (
    RANGES,
    Detections,
    Task,
    accumulate,
    match_detections,
    name_means,
)
from selfsight.evals.detection.instances import DetectionDataset
from selfsight.terminal.progress import track


class Ranked(NamedTuple):
    """Detections of one class and range of sizes, by falling score; and its objects."""

    area: int  # of RANGES
    image: Int[np.ndarray, " m"]
    found: Bool[np.ndarray, "t m"]  # an object at each overlap
    ignored: Bool[np.ndarray, "t m"]  # neither right nor wrong, such as those within a crowd
    objects: Int[np.ndarray, " n"]  # number in each image


def resample_average_precision(
    objects: DetectionDataset,
    detections: Sequence[Detections],
    *,
    task: Task = "box",
    recall_points: int = 101,
    max_detections: int = 100,
    progress: str | None = None,
) -> dict[str, Float64[np.ndarray, " b"]]:
    """The numbers of `average_precision`, each followed by its value on every resample.

    The mean of a resample is over the classes that it has objects of, and NaN if there are none.
    """
    evaluation = match_detections(objects, detections, task, recall_points, max_detections)
    numbers = accumulate(evaluation, task)
    counts = np.concatenate(list(resampled_counts(len(objects))), axis=1)
    recalls, overlaps = evaluation.params.recThrs, len(evaluation.params.iouThrs)
    sums = np.zeros((len(RANGES), overlaps, counts.shape[1]))
    num_classes = np.zeros((len(RANGES), 1, counts.shape[1]), np.int64)
    for ranked in track(_rank(evaluation), progress, len(objects.class_names) * len(RANGES)):
        present = ranked.objects @ counts
        for columns in _blocks(len(ranked.image), counts.shape[1]):
            drawn = _average_precision(ranked, counts[:, columns], present[columns], recalls)
            sums[ranked.area, :, columns] += drawn
        num_classes[ranked.area] += present > 0
    means = np.divide(sums, num_classes, out=np.full_like(sums, np.nan), where=num_classes > 0)
    resampled = name_means(means, task)
    return {name: np.concatenate([value, resampled[name]]) for name, value in numbers.items()}


def _rank(evaluation: Any) -> Iterator[Ranked]:
    """Rank the detections of every class and range of sizes that pycocotools matched."""
    num_images, limit = len(evaluation.params.imgIds), evaluation.params.maxDets[0]
    for start in range(0, len(evaluation.evalImgs), num_images):
        area = start // num_images % len(RANGES)
        matched = evaluation.evalImgs[start : start + num_images]
        matched = [(i, each) for i, each in enumerate(matched) if each is not None]
        objects = np.zeros(num_images, np.int64)
        for i, each in matched:
            objects[i] = np.count_nonzero(each["gtIgnore"] == 0)
        if not objects.any():
            continue
        scores = np.concatenate([each["dtScores"][:limit] for _, each in matched])
        order = np.argsort(-scores, kind="mergesort")  # equal scores as pycocotools orders them
        image = np.repeat([i for i, _ in matched], [len(e["dtScores"][:limit]) for _, e in matched])
        found, ignored = (
            np.concatenate([each[key][:, :limit] for _, each in matched], axis=1)[:, order] > 0
            for key in ("dtMatches", "dtIgnore")
        )
        counted = ~ignored.all(axis=0)
        yield Ranked(
            area=area,
            image=image[order][counted],
            found=(found & ~ignored)[:, counted],
            ignored=ignored[:, counted],
            objects=objects,
        )


def _blocks(rows: int, columns: int) -> Iterator[slice]:
    """Divide the resamples, so that an array of all detections stays small."""
    step = max(1, MAX_INDICES // max(rows, 1))
    return (slice(start, start + step) for start in range(0, columns, step))


def _average_precision(
    ranked: Ranked,
    counts: Int32[np.ndarray, "n b"],
    present: Int[np.ndarray, " b"],
    recalls: Float[np.ndarray, " r"],
) -> Float64[np.ndarray, "t b"]:
    """Average precision at every overlap, with these counts of images.

    Only the detections that found an object can be the best at a recall, so the rest is only
    counted. A recall that is not reached has a precision of 0.
    """
    counted = np.cumsum(counts[ranked.image], axis=0, dtype=np.int32)
    result = np.zeros((len(ranked.found), counts.shape[1]))
    for t, (found, ignored) in enumerate(zip(ranked.found, ranked.ignored, strict=True)):
        at = np.flatnonzero(found)
        hits = np.cumsum(counts[ranked.image[at]], axis=0, dtype=np.int32)
        left_out = np.flatnonzero(ignored)
        drawn = np.cumsum(counts[ranked.image[left_out]], axis=0, dtype=np.int32)
        before = np.pad(drawn, ((1, 0), (0, 0)))[np.searchsorted(left_out, at)]
        claims = counted[at] - before
        precision = hits / np.maximum(claims, 1)
        best = np.maximum.accumulate(precision[::-1], axis=0)[::-1]
        # The recalls that are reached up to each detection; the first has that of 0 in any case.
        reached = np.searchsorted(recalls, hits / np.maximum(present, 1), side="right")
        result[t] = (best * np.diff(reached, axis=0, prepend=0)).sum(axis=0) / len(recalls)
    return result
