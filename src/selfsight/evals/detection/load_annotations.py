"""Load a data set with boxes: detect its format and read the annotations."""

import glob
from collections.abc import Sequence
from pathlib import Path

from selfsight.errors import UserError
from selfsight.evals.detection import coco_annotations, voc_annotations
from selfsight.evals.detection.folder_or_tar import open_files
from selfsight.evals.detection.instances import DetectionDataset, concatenate
from selfsight.evals.detection.trimap_annotations import Classes, read_trimaps


def load_detection_dataset(
    path: str | Path | Sequence[str | Path], split: str = "train", *, classes: Classes = "one"
) -> DetectionDataset:
    """Load the images of a split and their objects; several paths are concatenated.

    A folder or .tar with annotations/instances_SPLIT.json (COCO), such a .json, a folder
    or .tar with Annotations/ and ImageSets/Main/SPLIT.txt (VOC), or Parquet files with trimaps,
    which have no splits.
    """
    if not isinstance(path, str | Path):
        return concatenate([load_detection_dataset(part, split, classes=classes) for part in path])
    text = str(path)
    if text.endswith(".parquet"):
        parquet = [Path(p) for p in sorted(glob.glob(text))]
        if not parquet:
            raise UserError(f"{text} does not exist. Check the path.")
        return read_trimaps(parquet, classes=classes)
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
        f"{path} has neither annotations/instances_SPLIT.json (COCO) nor Annotations/ with "
        "ImageSets/Main/SPLIT.txt (VOC). Give the folder that has them."
    )
