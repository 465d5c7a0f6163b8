"""Average precision of detections, by pycocotools: AP, AP50, AP75, and by object size."""

import contextlib
import io
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from selfsight.evals.detection.instances import DetectionDataset, import_pycocotools, to_coco_rle

Task = Literal["box", "mask"]
SMALL, LARGE, LARGEST = 32.0**2, 96.0**2, 1e10  # COCO's areas, in pixels of the image
RANGES = {"all": (0.0, LARGEST), "s": (0.0, SMALL), "m": (SMALL, LARGE), "l": (LARGE, LARGEST)}


class Detections(NamedTuple):
    """Detections in one image, in its pixels."""

    boxes: Float32[np.ndarray, "m 4"]  # left, top, right, bottom
    labels: Int64[np.ndarray, " m"]  # as in the set's class names
    scores: Float32[np.ndarray, " m"]
    masks: tuple[dict[str, Any], ...] | None = None  # pycocotools' run lengths


def average_precision(
    objects: DetectionDataset,
    detections: Sequence[Detections],
    *,
    task: Task = "box",
    recall_points: int = 101,
    max_detections: int = 100,
) -> dict[str, float]:
    """AP over IoUs from 0.5 to 0.95, at 0.5 and 0.75, and of small, medium and large objects.

    Values are from 0 to 1. A size without objects, such as AP_s without small ones, is left out.
    """
    matched = match_detections(objects, detections, task, recall_points, max_detections)
    return {name: float(values[0]) for name, values in accumulate(matched, task).items()}


def match_detections(
    objects: DetectionDataset,
    detections: Sequence[Detections],
    task: Task,
    recall_points: int,
    max_detections: int,
) -> Any:
    """Match detections with objects: the COCOeval of pycocotools, before it accumulates."""
    module = import_pycocotools("cocoeval")
    with contextlib.redirect_stdout(io.StringIO()):  # it prints every step
        evaluation = module.COCOeval(
            _index(objects, _ground_truth(objects, task)),
            _index(objects, _predictions(detections, task)),
            "bbox" if task == "box" else "segm",
        )
        params = evaluation.params
        params.recThrs = np.linspace(0, 1, recall_points)
        params.maxDets = [max_detections]
        params.areaRng, params.areaRngLbl = list(RANGES.values()), list(RANGES)
        evaluation.evaluate()
    return evaluation


def accumulate(evaluation: Any, task: Task) -> dict[str, Float[np.ndarray, " 1"]]:
    """The numbers by name, as pycocotools accumulates them."""
    with contextlib.redirect_stdout(io.StringIO()):
        evaluation.accumulate()
    precision = evaluation.eval["precision"][..., 0]  # overlaps, recalls, classes, areas
    of_class = precision.mean(axis=1)[..., None]  # -1: the class has no such object
    counted = of_class > -1
    means = np.where(counted, of_class, 0).sum(axis=1) / np.maximum(counted.sum(axis=1), 1)
    means[~counted.any(axis=1)] = np.nan
    return name_means(means.transpose(1, 0, 2), task)


def name_means(
    means: Float[np.ndarray, "areas overlaps b"], task: Task
) -> dict[str, Float[np.ndarray, " b"]]:
    """Name the AP of each area and overlap, averaged over classes; without areas that have none."""
    area = dict(zip(RANGES, means, strict=True))
    values = {
        "AP": area["all"].mean(axis=0),
        "AP50": area["all"][0],
        "AP75": area["all"][5],
        **{f"AP_{size}": area[size].mean(axis=0) for size in ("s", "m", "l")},
    }
    return {f"{task}_{name}": v for name, v in values.items() if not np.isnan(v).all()}


def _index(objects: DetectionDataset, annotations: list[dict[str, Any]]) -> Any:
    """Build the data structure of pycocotools."""
    coco = import_pycocotools("coco").COCO()
    coco.dataset = {
        "images": [
            {"id": i, "height": h, "width": w} for i, (h, w) in enumerate(objects.sizes.tolist())
        ],
        "categories": [{"id": i, "name": name} for i, name in enumerate(objects.class_names)],
        "annotations": [a | {"id": i + 1} for i, a in enumerate(annotations)],  # 0 means no match
    }
    coco.createIndex()
    return coco


def _ground_truth(objects: DetectionDataset, task: Task) -> list[dict[str, Any]]:
    rows = []
    for image, instances in enumerate(objects.instances):
        height, width = objects.sizes[image].tolist()
        for i, box in enumerate(instances.boxes):
            row = _row(image, instances.labels[i], box) | {
                "area": float(instances.area[i]),
                "iscrowd": int(instances.crowd[i]),
            }
            if task == "mask":
                assert instances.masks is not None
                row["segmentation"] = to_coco_rle(instances.masks[i], height, width)
            rows.append(row)
    return rows


def _predictions(detections: Sequence[Detections], task: Task) -> list[dict[str, Any]]:
    rows = []
    for image, predicted in enumerate(detections):
        for i, box in enumerate(predicted.boxes):
            row = _row(image, predicted.labels[i], box) | {"score": float(predicted.scores[i])}
            row["area"] = row["bbox"][2] * row["bbox"][3]
            if task == "mask":
                assert predicted.masks is not None
                row["segmentation"] = predicted.masks[i]
                row["area"] = float(import_pycocotools("mask").area(predicted.masks[i]))
            rows.append(row)
    return rows


def _row(image: int, label: Any, box: np.ndarray) -> dict[str, Any]:
    left, top, right, bottom = map(float, box)
    return {
        "image_id": image,
        "category_id": int(label),
        "bbox": [left, top, right - left, bottom - top],
        "iscrowd": 0,
    }


def paste_masks(
    masks: Float[Tensor, "m 1 s s"], boxes: Float[Tensor, "m 4"], height: int, width: int
) -> Float[Tensor, "m h w"]:
    """Paste masks of boxes into the image, sampled at pixel centers."""
    left, top, right, bottom = boxes[:, :, None].unbind(dim=1)  # [m, 1]
    x = torch.arange(width, device=masks.device) + 0.5
    y = torch.arange(height, device=masks.device) + 0.5
    x = (x - left) / (right - left) * 2 - 1  # [m, W]; the box is -1 to 1
    y = (y - top) / (bottom - top) * 2 - 1
    grid = torch.stack(
        [x[:, None, :].expand(-1, height, -1), y[:, :, None].expand(-1, -1, width)], dim=3
    )
    return F.grid_sample(masks.to(grid.dtype), grid, align_corners=False)[:, 0]


def to_detections(
    detections: dict[str, Tensor], size: tuple[int, int], scaled: tuple[int, int]
) -> Detections:
    """Scale a detector's output from the resized image to the original."""
    ratio = torch.tensor([size[1] / scaled[1], size[0] / scaled[0]] * 2)
    boxes = detections["boxes"].float() * ratio.to(detections["boxes"].device)
    masks = None
    if "masks" in detections:
        inside = paste_masks(detections["masks"].float(), boxes, *size) >= 0.5
        layers = np.asfortranarray(inside.permute(1, 2, 0).byte().cpu().numpy())
        masks = tuple(import_pycocotools("mask").encode(layers)) if len(boxes) else ()
    return Detections(
        boxes.cpu().numpy(),
        detections["labels"].cpu().numpy() - 1,
        detections["scores"].float().cpu().numpy(),
        masks,
    )
