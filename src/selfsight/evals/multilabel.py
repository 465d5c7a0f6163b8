"""Images that may show several classes: Pascal VOC's, or one class each told as such."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import torch
from jaxtyping import Float, Int8, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from selfsight.backbones.resnet import ResNet
from selfsight.data import ImageStore, Source, load_images
from selfsight.errors import UserError, suggest
from selfsight.evals.features import features
from selfsight.evals.labeled_data import LabeledData
from selfsight.nn import Backbone
from selfsight.views import EvalView
from selfsight.views.spec import MEAN, STD

ABSENT, PRESENT, UNCOUNTED = 0, 1, -1
POOL = 6  # of VISSL: maps of 7 x 7 become 2 x 2


class MultilabelFeatures(NamedTuple):
    """Features, and of each class whether it is there (1), not (0), or not to be counted (-1)."""

    h: Float[Tensor, "n d"]
    y: Int8[Tensor, "n c"]


def one_hot(labels: Int64[Tensor, " n"], num_classes: int) -> Int8[Tensor, "n c"]:
    """Single labels as marks: the one class is there and all others are not."""
    return F.one_hot(labels.cpu(), num_classes).to(torch.int8)


class Maps(Backbone):
    """A ResNet's last maps, averaged over windows of 6 x 6: 8,192 numbers of a ResNet-50 at 224."""

    def __init__(self, network: ResNet) -> None:
        super().__init__()
        self.network, self.dim = network, 4 * network.dim

    def forward(self, x: Float[Tensor, "n c s s"]) -> Float[Tensor, "n d"]:
        """One row for each image."""
        return F.avg_pool2d(self.network.forward_to_stage(x, 4), POOL, stride=1).flatten(1)


@dataclass(frozen=True, kw_only=True, eq=False)
class MultilabelData:
    """Marked images to learn from and to be scored on, each squashed to a square.

    With `maps` a ResNet gives its last maps, averaged over windows (VISSL); other networks, and
    without it, their features.
    """

    train: ImageStore
    train_y: Int8[Tensor, "n c"]
    test: ImageStore
    test_y: Int8[Tensor, "m c"]
    class_names: tuple[str, ...]
    train_index: Int64[Tensor, " n"] | None = None  # which images the marks are of; None: all
    test_index: Int64[Tensor, " m"] | None = None
    size: int = 224
    maps: bool = True
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD
    batch_size: int = 256
    autocast: torch.dtype | None = None
    progress: bool = False
    distributed: bool = False  # every process calls the evaluator, and takes a share of the work

    def __post_init__(self) -> None:
        for name, images, y, index in (
            ("training", self.train, self.train_y, self.train_index),
            ("test", self.test, self.test_y, self.test_index),
        ):
            count = len(images) if index is None else len(index)
            if count != len(y) or y.shape[1] != len(self.class_names):
                raise UserError(
                    f"There are {count} {name} images and {len(self.class_names)} "
                    f"classes, but marks for {y.shape[0]} and {y.shape[1]}. Give a row for each "
                    "image and a column for each class."
                )
            if not count:
                raise UserError(f"There are no {name} images. Give a split that has some.")

    def features(self, backbone: nn.Module) -> tuple[MultilabelFeatures, MultilabelFeatures]:
        """Features and marks of what is learned from and of what is scored."""
        whole = self.maps and isinstance(backbone, ResNet) and self.size >= 32 * POOL
        network = Maps(backbone) if whole and isinstance(backbone, ResNet) else backbone
        return (
            MultilabelFeatures(
                self._encoded(network, self.train, self.train_index, "training"), self.train_y
            ),
            MultilabelFeatures(
                self._encoded(network, self.test, self.test_index, "test"), self.test_y
            ),
        )

    def _encoded(
        self, network: nn.Module, images: ImageStore, index: Tensor | None, title: str
    ) -> Float[Tensor, "n d"]:
        return features(
            network,
            images,
            EvalView(
                size=self.size,
                resize=self.size,
                keep_aspect=False,
                mean=self.mean,
                std=self.std,
            ),
            batch_size=self.batch_size,
            autocast=self.autocast,
            index=index,
            progress=f"{title} features" if self.progress else None,
            distributed=self.distributed,
        ).h


def as_multilabel(data: LabeledData, *, maps: bool = True) -> MultilabelData:
    """The same images with one class each, seen as VISSL sees those of VOC07."""
    if not data.has_test_images:
        raise UserError("An SVM is scored on other images. Give it a test set.")
    learned, scored = (one_hot(y, data.num_classes) for y in data.labels())
    return MultilabelData(
        train=data.train,
        train_y=learned,
        train_index=data.train_index,
        test=data.train if data.test is None else data.test,
        test_y=scored,
        test_index=None if data.split is None else data.split.test,
        class_names=data.train.class_names or tuple(map(str, range(data.num_classes))),
        size=data.spec.size,
        maps=maps,
        mean=data.spec.mean,
        std=data.spec.std,
        batch_size=data.batch_size,
        autocast=data.autocast,
        progress=data.progress,
        distributed=data.distributed,
    )


def load_voc07(folder: str | Path, **settings: Any) -> MultilabelData:
    """trainval to learn from and test to be scored on, of a folder such as VOCdevkit/VOC2007."""
    train, train_y, classes = open_voc(folder, "trainval")
    test, test_y, known = open_voc(folder, "test")
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


def open_voc(
    folder: str | Path, split: str, *, store_size: int = 256
) -> tuple[ImageStore, Int8[Tensor, "n c"], tuple[str, ...]]:
    """Images, marks and classes of a split of VOCdevkit/VOC2007 or another year's folder."""
    root = Path(folder)
    names, marks, classes = voc_marks(root, split)
    paths = [root / "JPEGImages" / f"{name}.jpg" for name in names]
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        raise UserError(
            f"{len(missing)} of {len(paths)} images of {root}'s split {split} are missing, "
            f"JPEGImages/{missing[0]} for one. Unpack the archive again."
        )
    source = Source(f"{root} {split}", names, None, (), lambda i: paths[i].read_bytes())
    images = load_images(source, store_size=store_size, channels=3)
    kept = {name: i for i, name in enumerate(names)}
    rows = torch.tensor([kept[name] for name in images.names])
    return images, torch.from_numpy(marks)[rows], classes


def voc_marks(root: Path, split: str) -> tuple[list[str], Int8[np.ndarray, "n c"], tuple[str, ...]]:
    """Names of a split's images and which classes they show.

    From ImageSets/Main/CLASS_SPLIT.txt, whose -1, 0 and 1 mean absent, only difficult ones, and
    present; where those lists are not there, from the objects in Annotations/*.xml.
    """
    lists = root / "ImageSets" / "Main"
    whole = lists / f"{split}.txt"
    if not whole.exists():
        known = [p.stem for p in lists.glob("*.txt") if "_" not in p.stem]
        raise UserError(
            f'{root} has no split "{split}": {whole} is not there.{suggest(split, known)} Give the '
            "folder of one year, such as VOCdevkit/VOC2007, and one of its splits."
        )
    names = [line.split()[0] for line in whole.read_text().splitlines() if line.strip()]
    found = sorted(lists.glob(f"*_{split}.txt"))
    if found:
        classes = tuple(path.stem.removesuffix(f"_{split}") for path in found)
        columns = [_listed(path, names) for path in found]
        return names, np.stack(columns, axis=1), classes
    shown_in = [_annotated(root / "Annotations" / f"{name}.xml") for name in names]
    classes = tuple(sorted({word for marks in shown_in for word in marks}))
    table = [[marks.get(word, ABSENT) for word in classes] for marks in shown_in]
    return names, np.array(table, np.int8).reshape(len(names), len(classes)), classes


def _listed(path: Path, names: Sequence[str]) -> Int8[np.ndarray, " n"]:
    meaning = {"1": PRESENT, "0": UNCOUNTED, "-1": ABSENT}
    try:
        lines = [line.split() for line in path.read_text().splitlines() if line.strip()]
        table = {name: meaning[word] for name, word in lines}
        return np.array([table[name] for name in names], np.int8)
    except (KeyError, ValueError) as error:
        raise UserError(
            f"{path} does not say of each image -1, 0 or 1 ({error}). Unpack the archive again."
        ) from error


def _annotated(path: Path) -> dict[str, int]:
    """Classes of one image; one that is only there as difficult is not to be counted."""
    try:
        root = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError) as error:
        raise UserError(f"{path} cannot be read: {error}. Unpack the archive again.") from error
    marks: dict[str, int] = {}
    for thing in root.iter("object"):
        name, hard = thing.findtext("name", ""), thing.findtext("difficult", "0").strip() == "1"
        marks[name] = max(marks.get(name, UNCOUNTED), UNCOUNTED if hard else PRESENT)
    return marks
