"""Find out what a path holds and read its objects."""

import glob
from collections.abc import Sequence
from pathlib import Path

from sightline.errors import UserError
from sightline.evals.detection import coco, voc
from sightline.evals.detection.files import open_files
from sightline.evals.detection.objects import Objects, joined
from sightline.evals.detection.trimaps import Classes, read_trimaps


def open_objects(
    path: str | Path | Sequence[str | Path], split: str = "train", *, classes: Classes = "one"
) -> Objects:
    """The pictures of a split and their objects; several paths become one set.

    A folder or .tar with annotations/instances_SPLIT.json (COCO), a .json of that kind, a folder
    or .tar with Annotations/ and ImageSets/Main/SPLIT.txt (VOC), or Parquet files with trimaps,
    which have no splits.
    """
    if not isinstance(path, str | Path):
        return joined([open_objects(part, split, classes=classes) for part in path])
    text = str(path)
    if text.endswith(".parquet"):
        fitting = [Path(p) for p in sorted(glob.glob(text))]
        if not fitting:
            raise UserError(f"There is no {text}. Check the path.")
        return read_trimaps(fitting, classes=classes)
    place = Path(path)
    if place.suffix == ".json" and place.exists():
        stem = place.stem.removeprefix(coco.PREFIX)
        root = place.parent.parent if place.parent.name == coco.FOLDER else place.parent
        here = place.relative_to(root).as_posix()
        folders = ("", stem, "images", f"images/{stem}")
        return coco.read_json(open_files(root), here, folders=folders)
    files = open_files(place)
    if coco.splits(files):
        return coco.read_coco(files, split)
    if voc.splits(files):
        return voc.read_voc(files, split)
    raise UserError(
        f"{path} holds neither annotations/instances_SPLIT.json (COCO) nor Annotations/ with "
        "ImageSets/Main/SPLIT.txt (VOC). Give the folder that has them."
    )
