"""Read COCO's annotations: annotations/instances_SPLIT.json."""

import json
from collections import defaultdict
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from selfsight.data.image_limits import check_pixels
from selfsight.errors import UserError, suggest
from selfsight.evals.detection.folder_or_tar import Files
from selfsight.evals.detection.instances import (
    DetectionDataset,
    Instances,
    clip_boxes,
    has_area,
    no_instances,
)

FOLDER, PREFIX, SUFFIX = "annotations", "instances_", ".json"
# Errors that a JSON file of another structure can cause.
MISFITS = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError)


def splits(files: Files) -> list[str]:
    """The splits with annotations: train, val, ..., or train2017, val2017."""
    names = [PurePosixPath(path).name for path in files.list_files(FOLDER)]
    matching = [n for n in names if n.startswith(PREFIX) and n.endswith(SUFFIX)]
    return [n.removeprefix(PREFIX).removesuffix(SUFFIX) for n in matching]


def read_coco(files: Files, split: str) -> DetectionDataset:
    """Read the objects of a split; "train" also matches train2017."""
    known = splits(files)
    dated = [s for s in known if s.startswith(split) and s[len(split) :].isdecimal()]
    matching = [split] if split in known else dated
    if len(matching) != 1:
        why = f"several splits {', '.join(matching)}" if matching else f'no split "{split}"'
        raise UserError(
            f"{files.name} has {why}; it has {', '.join(known) or 'none'}."
            f"{suggest(split, known)} Name one of them."
        )
    path = f"{FOLDER}/{PREFIX}{matching[0]}{SUFFIX}"
    return read_json(files, path, folders=("", matching[0], "images", f"images/{matching[0]}"))


def read_json(files: Files, path: str, *, folders: tuple[str, ...]) -> DetectionDataset:
    """Read the objects of one JSON file; images are searched in these folders, in order."""
    name = f"{files.name}/{path}"
    try:
        parsed = json.loads(files.read(path))
        images, categories = parsed["images"], parsed["categories"]
        by_image: dict[Any, list[dict[str, Any]]] = defaultdict(list)
        for annotation in parsed["annotations"]:
            by_image[annotation["image_id"]].append(annotation)
        number = {c["id"]: i for i, c in enumerate(categories)}
        class_names = tuple(str(c["name"]) for c in categories)
        paths = [_find_file(files, str(image["file_name"]), folders) for image in images]
        sizes = [(int(image["height"]), int(image["width"])) for image in images]
        for height, width in sizes:
            check_pixels(width, height)
        _check_references(name, {image["id"] for image in images}, number, by_image)
        dropped = 0
        instances = []
        for image, (height, width) in zip(images, sizes, strict=True):
            instances_of_image, num_dropped = _instances(
                by_image[image["id"]], number, height, width
            )
            instances.append(instances_of_image)
            dropped += num_dropped
    except UserError:
        raise
    except MISFITS as error:
        raise UserError(
            f"{name} is not in COCO's format ({type(error).__name__}: {error}). Expected is an "
            "object with images (id, file_name, width, height), annotations (image_id, "
            "category_id, bbox) and categories (id, name)."
        ) from error
    missing = [str(i["file_name"]) for i, p in zip(images, paths, strict=True) if p is None]
    if missing:
        raise UserError(
            f"{len(missing)} of {len(images)} images of {name} are missing, such as {missing[0]}. "
            f"Put them into {folders[1] if len(folders) > 1 else files.name}/."
        )
    if not images:
        raise UserError(f"{name} lists no image. Give a split with images.")
    note = f"{dropped} boxes of {name} have no area within their image and are left out."
    return DetectionDataset(
        name=name,
        names=[str(image["file_name"]) for image in images],
        sizes=np.array(sizes, np.int64),
        instances=instances,
        class_names=class_names,
        read=lambda i: files.read(str(paths[i])),
        notes=(note,) if dropped else (),
    )


def _find_file(files: Files, file_name: str, folders: tuple[str, ...]) -> str | None:
    tried = (f"{folder}/{file_name}" if folder else file_name for folder in folders)
    return next((path for path in tried if files.has(path)), None)


def _check_references(
    name: str, images: set[Any], categories: dict[Any, int], by_image: dict[Any, Any]
) -> None:
    for image, annotations in by_image.items():
        if image not in images:
            raise UserError(
                f"An annotation of {name} is of image {image}, which the file does not list. "
                "Add the image, or remove the annotation."
            )
        for annotation in annotations:
            if annotation["category_id"] not in categories:
                raise UserError(
                    f"An annotation of {name} is of category {annotation['category_id']}, which "
                    "the file does not list. Add the category, or remove the annotation."
                )


def _instances(
    annotations: list[dict[str, Any]], number: dict[Any, int], height: int, width: int
) -> tuple[Instances, int]:
    """The objects of one image, and the number of boxes that were left out."""
    segmentations = [a.get("segmentation") for a in annotations]
    masks = all(segmentations)
    if not annotations:
        return no_instances(masks=True), 0
    box = np.array([a["bbox"] for a in annotations], np.float64).reshape(-1, 4)
    boxes = clip_boxes(np.concatenate([box[:, :2], box[:, :2] + box[:, 2:]], axis=1), height, width)
    box_area = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1)
    instances = Instances(
        boxes,
        np.array([number[a["category_id"]] for a in annotations], np.int64),
        np.array([bool(a.get("iscrowd", 0)) for a in annotations]),
        np.array(
            [a.get("area", o) for a, o in zip(annotations, box_area, strict=True)], np.float64
        ),
        tuple(s for s in segmentations if s) if masks else None,
    )
    keep = has_area(boxes)
    return instances.select(keep), int((~keep).sum())
