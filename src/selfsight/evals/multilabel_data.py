"""Images with several classes each, as in Pascal VOC."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import torch
from jaxtyping import Float, Int8, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from selfsight.backbones.resnet import ResNet
from selfsight.data import Source
from selfsight.data.eval_transform import EvalTransform
from selfsight.errors import UserError, suggest
from selfsight.evals.eval_images import EvalImages, Images
from selfsight.evals.extract_features import features
from selfsight.evals.labeled_data import LabeledData
from selfsight.nn import Backbone

ABSENT, PRESENT, IGNORED = 0, 1, -1
POOL = 6  # window of VISSL: maps of 7 x 7 become 2 x 2


class MultilabelFeatures(NamedTuple):
    """Features, and for each class whether it is present (1), absent (0) or ignored (-1)."""

    h: Float[Tensor, "n d"]
    y: Int8[Tensor, "n c"]


def one_hot(labels: Int64[Tensor, " n"], num_classes: int) -> Int8[Tensor, "n c"]:
    """Convert single labels: one class is present and all others are absent."""
    return F.one_hot(labels.cpu(), num_classes).to(torch.int8)


class PooledMaps(Backbone):
    """A ResNet's last maps, averaged over windows of 6 x 6: 8,192 numbers for ResNet-50 at 224."""

    def __init__(self, network: ResNet) -> None:
        super().__init__()
        self.network, self.dim = network, 4 * network.dim

    def forward(self, x: Float[Tensor, "n c s s"]) -> Float[Tensor, "n d"]:
        """Return one row per image."""
        return F.avg_pool2d(self.network.forward_to_stage(x, 4), POOL, stride=1).flatten(1)


def to_squares(transform: EvalTransform, size: int | None = None) -> EvalTransform:
    """The same channels and statistics, but images resized to squares without cropping (VISSL)."""
    side = transform.size if size is None else size
    return replace(transform, size=side, resize=side, keep_aspect=False, interpolation="bilinear")


SQUARES = to_squares(EvalTransform())  # of 224 pixels


@dataclass(frozen=True, kw_only=True, eq=False)
class MultilabelData:
    """Training and test images with several classes each, resized to squares.

    A ResNet's last maps, averaged over windows, are its features (VISSL). Other networks use their
    own features.
    """

    train: Images
    train_y: Int8[Tensor, "n c"]
    test: Images
    test_y: Int8[Tensor, "m c"]
    class_names: tuple[str, ...]
    train_index: Int64[Tensor, " n"] | None = None  # images that the labels belong to; None: all
    test_index: Int64[Tensor, " m"] | None = None
    transform: EvalTransform = SQUARES
    batch_size: int = 256
    autocast: torch.dtype | None = None
    progress: bool = False
    distributed: bool = False  # every process calls the evaluator and encodes a part

    def __post_init__(self) -> None:
        for name, images, y, index in (
            ("training", self.train, self.train_y, self.train_index),
            ("test", self.test, self.test_y, self.test_index),
        ):
            count = len(images) if index is None else len(index)
            if count != len(y) or y.shape[1] != len(self.class_names):
                raise UserError(
                    f"There are {count} {name} images and {len(self.class_names)} classes, but the "
                    f"labels have shape {tuple(y.shape)}. Give a row per image and a column per "
                    "class."
                )
            if not count:
                raise UserError(f"There are no {name} images. Give a split that has some.")

    def features(self, backbone: nn.Module) -> tuple[MultilabelFeatures, MultilabelFeatures]:
        """Encode training and test images."""
        network = backbone
        if isinstance(backbone, ResNet) and self.transform.size >= 32 * POOL:
            network = PooledMaps(backbone)
        return (
            MultilabelFeatures(
                self._encode(network, self.train, self.train_index, "training"), self.train_y
            ),
            MultilabelFeatures(
                self._encode(network, self.test, self.test_index, "test"), self.test_y
            ),
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on the labels that were read."""
        return (*self.train.notes, *self.test.notes)

    def _encode(
        self, network: nn.Module, images: Images, index: Tensor | None, title: str
    ) -> Float[Tensor, "n d"]:
        return features(
            network,
            images,
            self.transform,
            batch_size=self.batch_size,
            autocast=self.autocast,
            index=index,
            progress=f"{title} features" if self.progress else None,
            distributed=self.distributed,
        ).h


def as_multilabel(data: LabeledData) -> MultilabelData:
    """Convert images with one class each, resized as VISSL resizes those of VOC07."""
    if not data.has_test_images:
        raise UserError("An SVM is scored on images it was not trained on. Give a test set.")
    train_y, test_y = (one_hot(y, data.num_classes) for y in data.labels())
    return MultilabelData(
        train=data.train,
        train_y=train_y,
        train_index=data.train_index,
        test=data.train if data.test is None else data.test,
        test_y=test_y,
        test_index=None if data.split is None else data.split.test,
        class_names=data.class_names,
        transform=to_squares(data.transform),
        batch_size=data.batch_size,
        autocast=data.autocast,
        progress=data.progress,
        distributed=data.distributed,
    )


def load_multilabel(
    train: Source,
    test: Source,
    transform: EvalTransform,
    *,
    device: torch.device | str = "cpu",
    **settings: Any,
) -> MultilabelData:
    """Load sources whose images have several classes, as squares of the size of the transform.

    The classes are those of either.
    """
    class_names = tuple(dict.fromkeys((*train.class_names, *test.class_names)))
    transform = to_squares(transform)
    images = [EvalImages(source, transform, device) for source in (train, test)]
    labels = []
    for source in (images[0].source, images[1].source):  # without unreadable images
        if source.multilabels is None:
            raise UserError(
                f"{source.name} has one class per image, but the other set has several. Both must "
                "have lists of classes; --label-column names their column."
            )
        table = torch.zeros(len(source), len(class_names), dtype=torch.int8)
        columns = [class_names.index(name) for name in source.class_names]
        table[:, columns] = torch.from_numpy(source.multilabels)
        labels.append(table)
    return MultilabelData(
        train=images[0],
        train_y=labels[0],
        test=images[1],
        test_y=labels[1],
        class_names=class_names,
        transform=transform,
        **settings,
    )


def load_voc07(folder: str | Path, **settings: Any) -> MultilabelData:
    """Load trainval for training and test for scoring, of a folder such as VOCdevkit/VOC2007."""
    train, train_y, classes = load_voc_split(folder, "trainval")
    test, test_y, known = load_voc_split(folder, "test")
    if known != classes:
        raise UserError(
            f"{folder} has {', '.join(classes)} in trainval but {', '.join(known)} in test. Both "
            "must be of the same classes."
        )
    return MultilabelData(
        train=train,
        train_y=train_y,
        test=test,
        test_y=test_y,
        class_names=classes,
        **settings,
    )


def load_voc_split(
    folder: str | Path, split: str
) -> tuple[EvalImages, Int8[Tensor, "n c"], tuple[str, ...]]:
    """Load images, labels and class names of a split of VOCdevkit/VOC2007 or of another year."""
    root = Path(folder)
    names, labels, classes = read_voc_labels(root, split)
    paths = [root / "JPEGImages" / f"{name}.jpg" for name in names]
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        raise UserError(
            f"{len(missing)} of {len(paths)} images of {root}'s split {split} are missing, such as "
            f"JPEGImages/{missing[0]}. Unpack the archive again."
        )
    source = Source(f"{root} {split}", names, None, (), lambda i: paths[i].read_bytes())
    images = EvalImages(source, SQUARES)
    row = {name: i for i, name in enumerate(names)}
    rows = torch.tensor([row[name] for name in images.names])  # unreadable images are left out
    return images, torch.from_numpy(labels)[rows], classes


def read_voc_labels(
    root: Path, split: str
) -> tuple[list[str], Int8[np.ndarray, "n c"], tuple[str, ...]]:
    """Image names, labels and class names of a split.

    From ImageSets/Main/CLASS_SPLIT.txt, where -1, 0 and 1 mean absent, only difficult objects, and
    present. Without those lists, from the objects in Annotations/*.xml.
    """
    lists = root / "ImageSets" / "Main"
    list_file = lists / f"{split}.txt"
    if not list_file.exists():
        known = [p.stem for p in lists.glob("*.txt") if "_" not in p.stem]
        raise UserError(
            f'{root} has no split "{split}": {list_file} does not exist.{suggest(split, known)} '
            "Give the folder of one year, such as VOCdevkit/VOC2007, and one of its splits."
        )
    names = [line.split()[0] for line in list_file.read_text().splitlines() if line.strip()]
    class_lists = sorted(lists.glob(f"*_{split}.txt"))
    if class_lists:
        classes = tuple(path.stem.removesuffix(f"_{split}") for path in class_lists)
        columns = [_read_class_list(path, names) for path in class_lists]
        return names, np.stack(columns, axis=1), classes
    objects = [_read_annotation(root / "Annotations" / f"{name}.xml") for name in names]
    classes = tuple(sorted({name for labels in objects for name in labels}))
    table = [[labels.get(name, ABSENT) for name in classes] for labels in objects]
    return names, np.array(table, np.int8).reshape(len(names), len(classes)), classes


def _read_class_list(path: Path, names: Sequence[str]) -> Int8[np.ndarray, " n"]:
    meaning = {"1": PRESENT, "0": IGNORED, "-1": ABSENT}
    try:
        lines = [line.split() for line in path.read_text().splitlines() if line.strip()]
        table = {name: meaning[value] for name, value in lines}
        return np.array([table[name] for name in names], np.int8)
    except (KeyError, ValueError) as error:
        raise UserError(
            f"{path} does not have -1, 0 or 1 for each image ({error}). Unpack the archive again."
        ) from error


def _read_annotation(path: Path) -> dict[str, int]:
    """Classes of one image; a class with only difficult objects is ignored."""
    try:
        root = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError) as error:
        raise UserError(f"{path} cannot be read: {error}. Unpack the archive again.") from error
    labels: dict[str, int] = {}
    for entry in root.iter("object"):
        name = entry.findtext("name", "")
        is_difficult = entry.findtext("difficult", "0").strip() == "1"
        labels[name] = max(labels.get(name, IGNORED), IGNORED if is_difficult else PRESENT)
    return labels
