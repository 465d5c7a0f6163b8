"""Images with annotated objects: boxes, classes and masks, in one format for all sources."""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64, UInt8

from selfsight.errors import UserError, suggest

Segmentation = dict[str, Any] | list[list[int | float]]
"""A mask in one of COCO's formats: polygons, run lengths, compressed run lengths."""


class Instances(NamedTuple):
    """The objects of one image, in its pixels; the top left corner is 0, 0."""

    boxes: Float64[np.ndarray, "m 4"]  # left, top, right, bottom
    labels: Int64[np.ndarray, " m"]
    crowd: Bool[np.ndarray, " m"]  # a group of objects: not trained on, not scored
    area: Float64[np.ndarray, " m"]  # defines small, medium and large
    masks: tuple[Segmentation, ...] | None

    def select(self, keep: Bool[np.ndarray, " m"]) -> "Instances":
        """Return some of the objects."""
        masks = self.masks and tuple(m for m, k in zip(self.masks, keep, strict=True) if k)
        return Instances(
            self.boxes[keep], self.labels[keep], self.crowd[keep], self.area[keep], masks
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class DetectionDataset:
    """Images with their objects; `read` returns the bytes of an image file."""

    name: str
    names: Sequence[str]
    sizes: Int64[np.ndarray, "n 2"]  # height, width after EXIF rotation
    instances: Sequence[Instances]
    class_names: tuple[str, ...]
    read: Callable[[int], bytes]
    notes: tuple[str, ...] = ()
    """Sentences for the user."""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def has_masks(self) -> bool:
        """Whether every object has a mask."""
        return all(image.masks is not None for image in self.instances)


def no_instances(*, masks: bool) -> Instances:
    """An image without objects."""
    empty = np.zeros(0)
    return Instances(
        np.zeros((0, 4)), empty.astype(np.int64), empty.astype(bool), empty, () if masks else None
    )


def clip_boxes(
    boxes: Float[np.ndarray, "m 4"], height: int, width: int
) -> Float64[np.ndarray, "m 4"]:
    """Clip boxes to the image."""
    return np.clip(boxes.astype(np.float64), 0, [width, height, width, height])


def has_area(boxes: Float[np.ndarray, "m 4"]) -> Bool[np.ndarray, " m"]:
    """Whether each box has an area; one with NaN has none."""
    return (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])


def subset(objects: DetectionDataset, keep: Sequence[int]) -> DetectionDataset:
    """Return some of the images, renumbered."""
    indices, read = [int(i) for i in keep], objects.read
    return replace(
        objects,
        names=[objects.names[i] for i in indices],
        sizes=objects.sizes[indices],
        instances=[objects.instances[i] for i in indices],
        read=lambda i: read(indices[i]),
    )


def training_subset(objects: DetectionDataset) -> DetectionDataset:
    """Leave out crowds, and then images without objects, as in detectron2."""
    instances = [image.select(~image.crowd) for image in objects.instances]
    keep = [i for i, image in enumerate(instances) if len(image.boxes)]
    if not keep:
        raise UserError(
            f"None of the {len(objects)} images of {objects.name} has an object to train on. "
            "Check its annotations."
        )
    left_out = len(objects) - len(keep)
    note = f"{left_out} of {len(objects)} images of {objects.name} have no object: left out."
    return replace(
        subset(replace(objects, instances=instances), keep),
        notes=(*objects.notes, note) if left_out else objects.notes,
    )


def renumber_classes(
    objects: DetectionDataset, class_names: tuple[str, ...], of: str
) -> DetectionDataset:
    """Number the classes as in another data set."""
    for name in objects.class_names:
        if name not in class_names:
            raise UserError(
                f'{objects.name} has a class "{name}" that {of} lacks.'
                f"{suggest(name, class_names)} Both must use the same names."
            )
    number = np.array([class_names.index(name) for name in objects.class_names], np.int64)
    renumbered = [image._replace(labels=number[image.labels]) for image in objects.instances]
    return replace(objects, instances=renumbered, class_names=class_names)


def concatenate(parts: Sequence[DetectionDataset]) -> DetectionDataset:
    """Concatenate data sets, such as trainval of VOC 2007 and 2012."""
    names = tuple(dict.fromkeys(name for part in parts for name in part.class_names))
    same = [renumber_classes(part, names, "the others") for part in parts]
    starts = np.cumsum([0, *map(len, same)])

    def read(i: int) -> bytes:
        part = int(np.searchsorted(starts, i, side="right")) - 1
        return same[part].read(i - int(starts[part]))

    return DetectionDataset(
        name=" + ".join(part.name for part in same),
        names=[name for part in same for name in part.names],
        sizes=np.concatenate([part.sizes for part in same]),
        instances=[image for part in same for image in part.instances],
        class_names=names,
        read=read,
        notes=tuple(note for part in same for note in part.notes),
    )


def encode_mask(mask: Bool[np.ndarray, "h w"]) -> dict[str, Any]:
    """Encode a mask as COCO's run lengths: column by column, zeros first."""
    flat = mask.flatten(order="F")
    changes = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    counts = np.diff(np.concatenate([[0], changes, [flat.size]])).tolist()
    return {"size": list(mask.shape), "counts": [0, *counts] if flat[0] else counts}


def decode_mask(mask: Segmentation, height: int, width: int) -> UInt8[np.ndarray, "h w"]:
    """Decode a mask to ones and zeros."""
    lengths = mask if isinstance(mask, dict) else to_coco_rle(mask, height, width)
    counts = lengths["counts"]
    counts = np.asarray(counts if isinstance(counts, list) else _decode_counts(counts))
    ones = np.arange(len(counts), dtype=np.uint8) % 2
    return np.repeat(ones, counts).reshape(lengths["size"], order="F")


def _decode_counts(text: str | bytes) -> list[int]:
    """Decode COCO's compressed run lengths; pycocotools' own decoder warns under numpy 2.

    Each character has five bits, lowest first; a sixth bit says that more follow. From the third
    on, a number is the difference to the one before the last.
    """
    counts: list[int] = []
    number = shift = 0
    for character in text.encode() if isinstance(text, str) else text:
        bits = character - 48
        number |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        if bits & 16:  # the highest bit that was written is the sign
            number -= 1 << shift
        counts.append(number + (counts[-2] if len(counts) > 2 else 0))
        number = shift = 0
    return counts


def to_coco_rle(mask: Segmentation, height: int, width: int) -> dict[str, Any]:
    """Convert a mask to the compressed run lengths of pycocotools."""
    coco = import_pycocotools("mask")
    if isinstance(mask, list):  # polygons; an object in several parts has several
        return coco.merge(coco.frPyObjects(mask, height, width))
    return coco.frPyObjects(mask, height, width) if isinstance(mask["counts"], list) else mask


def import_pycocotools(module: str) -> Any:
    """Import a module of pycocotools, an optional dependency."""
    try:
        return importlib.import_module(f"pycocotools.{module}")
    except ImportError as error:
        raise UserError(
            "Scoring detections and reading polygons need one more package. "
            "Install it with: pip install 'selfsight[detection]'"
        ) from error
