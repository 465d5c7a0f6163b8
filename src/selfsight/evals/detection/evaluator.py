"""The detection protocol: train a detector from the backbone and score it on test images."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed
from jaxtyping import Float64
from torch import nn

from selfsight import dist
from selfsight.errors import UserError
from selfsight.evals.detection.coco_ap import Detections, Task, to_detections
from selfsight.evals.detection.detector_settings import PUBLISHED, DetectorSettings
from selfsight.evals.detection.instances import (
    DetectionDataset,
    import_pycocotools,
    renumber_classes,
    training_subset,
)
from selfsight.evals.detection.loader import DecodedImages, load_batches, plan_test_batches
from selfsight.evals.detection.resampled_ap import resample_average_precision
from selfsight.evals.detection.train_detector import fit
from selfsight.evals.encoder_differences import paired_differences
from selfsight.evals.extract_features import module_device
from selfsight.evals.prediction_scores import PerImage, Scores, score_per_image
from selfsight.terminal.progress import track


@dataclass(frozen=True, kw_only=True, eq=False)
class DetectionEvaluator:
    """Average precision of a detector that is fine-tuned from the backbone."""

    train: DetectionDataset
    test: DetectionDataset
    detector: DetectorSettings = PUBLISHED["small_fpn"]
    seed: int = 0
    device: torch.device | None = None  # None: the device of the backbone
    autocast: torch.dtype | None = torch.bfloat16  # on a GPU; a CPU computes in float32
    progress: bool = False

    def __post_init__(self) -> None:
        for objects in (self.train, self.test):
            if self.detector.masks and not objects.has_masks:
                raise UserError(
                    f"The detector predicts masks, but some objects of {objects.name} have none. "
                    "Use settings with masks=False, or annotate the masks."
                )
        if all(image.crowd.all() for image in self.test.instances):
            raise UserError(
                f"No image of {self.test.name} has an object that counts (crowds and difficult "
                "objects do not), so that nothing can be scored. Give annotated test images."
            )
        renumber_classes(self.test, self.train.class_names, self.train.name)

    def __call__(self, backbone: nn.Module) -> Scores:
        """Return the numbers for a backbone; the mean over trials, if there are several.

        The interval of a number is over test images; the spread is over trials.
        """
        import_pycocotools("cocoeval")  # raise now if it is not installed, not after training
        _check_backbone(backbone, self.detector)
        trials = [self._trial(backbone, self.seed + t) for t in range(self.detector.trials)]
        losses, found = zip(*trials, strict=True)
        replicates = {name: np.mean([aps[name] for aps in found], axis=0) for name in found[0]}
        scores = score_per_image(PerImage(n=len(self.test), values={}, replicates=replicates))
        scores |= {"train_loss": float(np.mean(losses))}
        if len(trials) > 1:
            scores["box_AP_spread"] = float(np.std([aps["box_AP"][0] for aps in found], ddof=1))
        return scores

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on images and objects that were left out."""
        return (*training_subset(self.train).notes, *self.test.notes)

    def settings(self) -> dict[str, Any]:
        """The settings that decided the numbers, for the result file."""
        return asdict(self.detector) | {
            "train": self.train.name,
            "train_images": len(self.train),
            "test": self.test.name,
            "test_images": len(self.test),
            "seed": self.seed,
            "autocast": str(self.autocast),
            "notes": list(self.notes),
        }

    def _trial(
        self, backbone: nn.Module, seed: int
    ) -> tuple[float, dict[str, Float64[np.ndarray, " b"]]]:
        """The loss of the last iterations, and each AP with its value on every resample."""
        settings, device = self.detector, self.device or module_device(backbone)
        autocast = self.autocast if device.type == "cuda" else None
        train = training_subset(self.train)
        test = renumber_classes(self.test, self.train.class_names, self.train.name)
        from selfsight.evals.detection.rcnn import Detector

        detector = Detector(backbone, len(train.class_names), settings, seed=seed).to(device)
        detector = detector.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        loss = fit(
            detector,
            self._images(train, max(settings.short_sides), settings.masks, device),
            settings,
            seed=seed,
            autocast=autocast,
            progress="detector, training" if self.progress else None,
        )
        images = self._images(test, settings.test_short_side, False, device)
        detections = self.detect(detector, images, autocast)
        tasks: tuple[Task, ...] = ("box", "mask") if settings.masks else ("box",)
        replicates: dict[str, Float64[np.ndarray, " b"]] = {}
        for task in tasks:
            replicates |= resample_average_precision(
                test,
                detections,
                task=task,
                recall_points=settings.recall_points,
                max_detections=settings.max_detections,
                progress=f"{task} AP" if self.progress else None,
            )
        return loss, replicates

    def _images(
        self, objects: DetectionDataset, store_size: int, masks: bool, device: torch.device
    ) -> DecodedImages:
        channels = len(self.detector.mean)
        return DecodedImages(
            objects, store_size=store_size, channels=channels, masks=masks, device=device
        )

    @torch.no_grad()
    def detect(
        self, detector: Any, images: DecodedImages, autocast: torch.dtype | None = None
    ) -> list[Detections]:
        """Detect objects in every image; every process returns all results."""
        detector.eval()
        plans = plan_test_batches(images.objects, self.detector)
        local: dict[int, Detections] = {}
        title = "detector, test images" if self.progress else None
        for batch in track(load_batches(images, plans, self.detector), title, len(plans)):
            x = batch.pixels.contiguous(memory_format=torch.channels_last)
            with torch.autocast(x.device.type, autocast, enabled=autocast is not None):
                answers = detector(x, batch.sizes)
            for i, answer, scaled in zip(
                batch.position.tolist(), answers, batch.sizes, strict=True
            ):
                height, width = images.objects.sizes[i].tolist()
                local[i] = to_detections(answer, (height, width), scaled)
        merged = {i: x for detections in dist.gather_objects(local) for i, x in detections.items()}
        return [merged[i] for i in range(len(images.objects))]


def compare(
    evaluation: DetectionEvaluator, backbones: Mapping[str, nn.Module]
) -> list[dict[str, Any]]:
    """Evaluate several backbones with the same settings, such as pretrained and random ones.

    From the second on, `difference` is how far the first is above it in box AP, on the same images.
    """
    if not backbones:
        raise UserError("No backbone to compare was given. Give at least one.")
    for backbone in backbones.values():
        _check_backbone(backbone, evaluation.detector)
    rows: list[dict[str, Any]] = [
        {"backbone": name} | evaluation(backbone) for name, backbone in backbones.items()
    ]
    first, *others = (row.pop("per_image") for row in rows)
    for row, other in zip(rows[1:], others, strict=True):
        row["difference"] = paired_differences(first, other)["box_AP"]
    return rows


def _check_backbone(backbone: nn.Module, settings: DetectorSettings) -> None:
    # Imported here, because torchvision's detection imports torch's compiler, which takes seconds.
    from selfsight.evals.detection.rcnn import prepare_backbone

    prepare_backbone(backbone, settings)
