"""Find out what a path holds and read its objects."""

import glob
from collections.abc import Sequence
from pathlib import Path

from selfsight.errors import UserError
from selfsight.evals.detection import coco_annotations, voc_annotations
from selfsight.evals.detection.annotation_files import open_files
from selfsight.evals.detection.annotations import DetectionDataset, joined
from selfsight.evals.detection.trimap_annotations import Classes, read_trimaps


def load_detection_dataset(
    path: str | Path | Sequence[str | Path], split: str = "train", *, classes: Classes = "one"
) -> DetectionDataset:
    """The images of a split and their objects; several paths become one set.

    A folder or .tar with annotations/instances_SPLIT.json (COCO), a .json of that kind, a folder
    or .tar with Annotations/ and ImageSets/Main/SPLIT.txt (VOC), or Parquet files with trimaps,
    which have no splits.
    """
    if not isinstance(path, str | Path):
        return joined([load_detection_dataset(part, split, classes=classes) for part in path])
    text = str(path)
    if text.endswith(".parquet"):
        fitting = [Path(p) for p in sorted(glob.glob(text))]
        if not fitting:
            raise UserError(f"There is no {text}. Check the path.")
        return read_trimaps(fitting, classes=classes)
    place = Path(path)
    if place.suffix == ".json" and place.exists():
        stem = place.stem.removeprefix(coco_annotations.PREFIX)
        root = place.parent.parent if place.parent.name == coco_annotations.FOLDER else place.parent
        here = place.relative_to(root).as_posix()
        folders = ("", stem, "images", f"images/{stem}")
        return coco_annotations.read_json(open_files(root), here, folders=folders)
    files = open_files(place)
    if coco_annotations.splits(files):
        return coco_annotations.read_coco(files, split)
    if voc_annotations.splits(files):
        return voc_annotations.read_voc(files, split)
    raise UserError(
        f"{path} holds neither annotations/instances_SPLIT.json (COCO) nor Annotations/ with "
        "ImageSets/Main/SPLIT.txt (VOC). Give the folder that has them."
    )
