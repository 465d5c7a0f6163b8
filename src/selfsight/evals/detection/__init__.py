"""Detection and segmentation: Faster and Mask R-CNN on our ResNets, scored by average precision."""

from selfsight.evals.detection.coco_ap import average_precision
from selfsight.evals.detection.detector_settings import PUBLISHED, DetectorSettings, with_iterations
from selfsight.evals.detection.evaluator import DetectionEvaluator, compare
from selfsight.evals.detection.instances import DetectionDataset, concatenate, subset
from selfsight.evals.detection.load_annotations import load_detection_dataset

__all__ = [
    "PUBLISHED",
    "DetectionDataset",
    "DetectionEvaluator",
    "DetectorSettings",
    "average_precision",
    "compare",
    "concatenate",
    "load_detection_dataset",
    "subset",
    "with_iterations",
]
