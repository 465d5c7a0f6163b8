"""Read Pascal VOC's annotations: Annotations/*.xml, JPEGImages/, ImageSets/Main/SPLIT.txt."""

from pathlib import PurePosixPath
from xml.etree import ElementTree

import numpy as np

from selfsight.data.sources.source import encode_labels
from selfsight.errors import UserError, suggest
from selfsight.evals.detection.folder_or_tar import Files
from selfsight.evals.detection.instances import DetectionDataset, Instances, clip_boxes, has_area

LISTS = "ImageSets/Main"


def splits(files: Files) -> list[str]:
    """The splits with a list of images; lists of one class ("cat_train") are left out."""
    names = [PurePosixPath(path).stem for path in files.list_files(LISTS)]
    return [name for name in names if "_" not in name]


def read_voc(files: Files, split: str) -> DetectionDataset:
    """Read the objects of a split; difficult ones are trained on but not scored."""
    known = splits(files)
    if split not in known:
        raise UserError(
            f'{files.name} has no split "{split}"; it has {", ".join(known) or "none"}.'
            f"{suggest(split, known)} Name one of them."
        )
    text = files.read(f"{LISTS}/{split}.txt").decode()
    stems = [line.split()[0] for line in text.splitlines() if line.strip()]
    if not stems:
        raise UserError(f"{files.name}/{LISTS}/{split}.txt is empty. Give a split with images.")
    for folder, suffix in (("Annotations", "xml"), ("JPEGImages", "jpg")):
        missing = [s for s in stems if not files.has(f"{folder}/{s}.{suffix}")]
        if missing:
            raise UserError(
                f"{len(missing)} of {len(stems)} files of {files.name}'s split {split} are "
                f"missing, such as {folder}/{missing[0]}.{suffix}. Add them, or shorten the list."
            )
    parsed = [_parse(files, f"Annotations/{stem}.xml") for stem in stems]
    labels, class_names = encode_labels([name for _, objects in parsed for name, _, _ in objects])
    sizes = np.array([size for size, _ in parsed], np.int64)
    instances, at, dropped = [], 0, 0
    for (height, width), objects in parsed:
        boxes = clip_boxes(np.array([box for _, box, _ in objects]).reshape(-1, 4), height, width)
        keep = has_area(boxes)
        # COCO ignores objects beyond every area range, and boxes that match them.
        difficult = np.array([x for *_, x in objects], bool)
        box_area = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1)
        area = np.where(difficult, np.inf, box_area)
        crowd = np.zeros(len(objects), bool)
        image = Instances(boxes, labels[at : at + len(objects)], crowd, area, None)
        instances.append(image.select(keep))
        at, dropped = at + len(objects), dropped + int((~keep).sum())
    note = f"{dropped} boxes of {files.name} have no area within their image and are left out."
    return DetectionDataset(
        name=f"{files.name} {split}",
        names=[f"{stem}.jpg" for stem in stems],
        sizes=sizes,
        instances=instances,
        class_names=class_names,
        read=lambda i: files.read(f"JPEGImages/{stems[i]}.jpg"),
        notes=(note,) if dropped else (),
    )


def _parse(files: Files, path: str) -> tuple[tuple[int, int], list[tuple[str, list[float], bool]]]:
    """Height and width of an image; class, box and difficulty of each object."""
    try:
        root = ElementTree.fromstring(files.read(path))
        size = int(root.findtext("size/height", "")), int(root.findtext("size/width", ""))
        return size, [_parse_object(entry) for entry in root.iter("object")]
    except (ElementTree.ParseError, ValueError) as error:
        raise UserError(
            f"{files.name}/{path} is not in VOC's format ({error}). Expected are size/height, "
            "size/width and objects with name and bndbox (xmin, ymin, xmax, ymax)."
        ) from error


def _parse_object(entry: ElementTree.Element) -> tuple[str, list[float], bool]:
    left, top, right, bottom = (
        float(entry.findtext(f"bndbox/{side}", "")) for side in ("xmin", "ymin", "xmax", "ymax")
    )
    name = entry.findtext("name")
    if not name:
        raise ValueError("an object without a name")
    # Pixels are numbered from 1, and the last one belongs to the box.
    return name, [left - 1, top - 1, right, bottom], entry.findtext("difficult", "0") == "1"
