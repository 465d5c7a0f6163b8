"""Detection and segmentation: Faster and Mask R-CNN on our ResNets, scored by average precision."""

from selfsight.evals.detection.annotations import Objects, joined, subset
from selfsight.evals.detection.coco_ap import average_precision
from selfsight.evals.detection.evaluator import Detection, compare
from selfsight.evals.detection.open_annotations import open_objects
from selfsight.evals.detection.settings import PUBLISHED, Setting, shortened
from selfsight.evals.detection.to_detectron2 import to_detectron2

__all__ = [
    "PUBLISHED",
    "Detection",
    "Objects",
    "Setting",
    "average_precision",
    "compare",
    "joined",
    "open_objects",
    "shortened",
    "subset",
    "to_detectron2",
]
