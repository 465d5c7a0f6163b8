"""Images and the objects in them: boxes, classes and masks, whatever file they came from."""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64, UInt8

from selfsight.errors import UserError, suggest

Segmentation = dict[str, Any] | list[list[int | float]]
"""COCO's three ways to write a mask: polygons, run lengths, run lengths as a string."""


class Instances(NamedTuple):
    """The objects in one image, in its own pixels; the top left corner is 0, 0."""

    boxes: Float64[np.ndarray, "m 4"]  # left, top, right, bottom
    labels: Int64[np.ndarray, " m"]
    crowd: Bool[np.ndarray, " m"]  # several objects in one: not learned from, not counted
    area: Float64[np.ndarray, " m"]  # decides small, medium or large
    masks: tuple[Segmentation, ...] | None

    def only(self, keep: Bool[np.ndarray, " m"]) -> "Instances":
        """Some of the objects."""
        masks = self.masks and tuple(m for m, k in zip(self.masks, keep, strict=True) if k)
        return Instances(
            self.boxes[keep], self.labels[keep], self.crowd[keep], self.area[keep], masks
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class DetectionDataset:
    """A set of images with their objects; `read` gives the bytes of an image's file."""

    name: str
    names: Sequence[str]
    sizes: Int64[np.ndarray, "n 2"]  # height, width, upright
    instances: Sequence[Instances]
    class_names: tuple[str, ...]
    read: Callable[[int], bytes]
    notes: tuple[str, ...] = ()
    """Sentences the user should see."""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def has_masks(self) -> bool:
        """Whether every object has a mask."""
        return all(found.masks is not None for found in self.instances)


def none_found(*, masks: bool) -> Instances:
    """An image without objects."""
    empty = np.zeros(0)
    return Instances(
        np.zeros((0, 4)), empty.astype(np.int64), empty.astype(bool), empty, () if masks else None
    )


def clipped(boxes: Float[np.ndarray, "m 4"], height: int, width: int) -> Float64[np.ndarray, "m 4"]:
    """What of the boxes lies within the image."""
    return np.clip(boxes.astype(np.float64), 0, [width, height, width, height])


def some(boxes: Float[np.ndarray, "m 4"]) -> Bool[np.ndarray, " m"]:
    """Which boxes have an area; a NaN has none."""
    return (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])


def subset(objects: DetectionDataset, keep: Sequence[int]) -> DetectionDataset:
    """Some of the images, under new numbers."""
    kept, read = [int(i) for i in keep], objects.read
    return replace(
        objects,
        names=[objects.names[i] for i in kept],
        sizes=objects.sizes[kept],
        instances=[objects.instances[i] for i in kept],
        read=lambda i: read(kept[i]),
    )


def to_learn_from(objects: DetectionDataset) -> DetectionDataset:
    """Without crowds, and without the images that then hold nothing, as in detectron2."""
    alone = [found.only(~found.crowd) for found in objects.instances]
    keep = [i for i, found in enumerate(alone) if len(found.boxes)]
    if not keep:
        raise UserError(
            f"No image of {objects.name} holds an object to learn from, of {len(objects)} read. "
            "Check its annotations."
        )
    left_out = len(objects) - len(keep)
    note = f"{left_out} of {len(objects)} images of {objects.name} hold no object: not learned."
    return replace(
        subset(replace(objects, instances=alone), keep),
        notes=(*objects.notes, note) if left_out else objects.notes,
    )


def with_classes(
    objects: DetectionDataset, class_names: tuple[str, ...], of: str
) -> DetectionDataset:
    """The same objects, their classes numbered as in another set."""
    for name in objects.class_names:
        if name not in class_names:
            raise UserError(
                f'{objects.name} has a class "{name}" that {of} lacks.'
                f"{suggest(name, class_names)} Both must use the same names."
            )
    number = np.array([class_names.index(name) for name in objects.class_names], np.int64)
    renumbered = [found._replace(labels=number[found.labels]) for found in objects.instances]
    return replace(objects, instances=renumbered, class_names=class_names)


def joined(parts: Sequence[DetectionDataset]) -> DetectionDataset:
    """Several sets as one, in their order, as trainval of VOC 2007 and 2012."""
    names = tuple(dict.fromkeys(name for part in parts for name in part.class_names))
    same = [with_classes(part, names, "the others") for part in parts]
    starts = np.cumsum([0, *map(len, same)])

    def read(i: int) -> bytes:
        part = int(np.searchsorted(starts, i, side="right")) - 1
        return same[part].read(i - int(starts[part]))

    return DetectionDataset(
        name=" + ".join(part.name for part in same),
        names=[name for part in same for name in part.names],
        sizes=np.concatenate([part.sizes for part in same]),
        instances=[found for part in same for found in part.instances],
        class_names=names,
        read=read,
        notes=tuple(note for part in same for note in part.notes),
    )


def run_lengths(mask: Bool[np.ndarray, "h w"]) -> dict[str, Any]:
    """A mask as COCO's run lengths: down the columns, zeros first."""
    flat = mask.flatten(order="F")
    turns = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    counts = np.diff(np.concatenate([[0], turns, [flat.size]])).tolist()
    return {"size": list(mask.shape), "counts": [0, *counts] if flat[0] else counts}


def rasterized(mask: Segmentation, height: int, width: int) -> UInt8[np.ndarray, "h w"]:
    """A mask as ones and zeros."""
    lengths = mask if isinstance(mask, dict) else compressed(mask, height, width)
    counts = lengths["counts"]
    counts = np.asarray(counts if isinstance(counts, list) else _unpacked(counts))
    ones = np.arange(len(counts), dtype=np.uint8) % 2
    return np.repeat(ones, counts).reshape(lengths["size"], order="F")


def _unpacked(text: str | bytes) -> list[int]:
    """The run lengths in COCO's string; pycocotools' own decoder warns under numpy 2.

    Five bits a character, the lowest first; a sixth says that more follow. From the third on, a
    number is the difference to the one before the last.
    """
    counts: list[int] = []
    number = shift = 0
    for character in text.encode() if isinstance(text, str) else text:
        piece = character - 48
        number |= (piece & 31) << shift
        shift += 5
        if piece & 32:
            continue
        if piece & 16:  # the highest bit that was written is the sign
            number -= 1 << shift
        counts.append(number + (counts[-2] if len(counts) > 2 else 0))
        number = shift = 0
    return counts


def compressed(mask: Segmentation, height: int, width: int) -> dict[str, Any]:
    """A mask as pycocotools wants it."""
    coco = pycocotools("mask")
    if isinstance(mask, list):  # polygons; a thing cut in two has several
        return coco.merge(coco.frPyObjects(mask, height, width))
    return coco.frPyObjects(mask, height, width) if isinstance(mask["counts"], list) else mask


def pycocotools(part: str) -> Any:
    """A module of pycocotools, which is not installed with the rest."""
    try:
        return importlib.import_module(f"pycocotools.{part}")
    except ImportError as error:
        raise UserError(
            "Scoring detections and reading polygons need one more package. "
            "Install it with: pip install 'selfsight[detection]'"
        ) from error
