"""Detection and segmentation: Faster and Mask R-CNN on our ResNets, scored by average precision."""

from sightline.evals.detection.data import open_objects
from sightline.evals.detection.detectron2 import to_detectron2
from sightline.evals.detection.evaluate import Detection, compare
from sightline.evals.detection.objects import Objects, joined, subset
from sightline.evals.detection.score import average_precision
from sightline.evals.detection.settings import PUBLISHED, Setting, shortened

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
