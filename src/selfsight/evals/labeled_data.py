"""Labeled training and test images, the input of every evaluator with labels."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from selfsight.data import ImageStore
from selfsight.data.eval_transform import EvalTransform
from selfsight.errors import UserError, list_first, suggest
from selfsight.evals.eval_images import EvalImages, Images, augmentation_size
from selfsight.evals.extract_features import BATCH_SIZE, Features, features
from selfsight.evals.stratified_splits import Split

HOST_ROWS = 1 << 18  # training images; of more, features take gigabytes


@dataclass(frozen=True, kw_only=True, eq=False)
class LabeledData:
    """Training and test images, and how they are encoded.

    The test images are `test`, or else the images `split.test` of `train`. The training images are
    those of `train` in `subset`, or else in `split.train`, or else all. Without `test` and `split`
    the evaluator decides which images are scored.
    """

    train: Images
    test: Images | None = None
    transform: EvalTransform
    split: Split | None = None
    subset: Int64[Tensor, " m"] | None = None
    subset_name: str = ""  # for the result file: "1 %", "5 per class"
    subset_notes: tuple[str, ...] = ()
    batch_size: int = BATCH_SIZE  # of encoding
    device: torch.device | None = None  # None: the device of the backbone
    autocast: torch.dtype | None = None
    progress: bool = False
    distributed: bool = False  # every process calls the evaluator and encodes a part

    def __post_init__(self) -> None:
        for name, images in (("training", self.train), ("test", self.test)):
            if images is not None:
                _check_labels(name, images)
        if self.test is not None:
            if self.split is not None:
                raise UserError("Give test images or a split of the training images, not both.")
            self._class_mapping(self.test)
        train_y, test_y = self.labels()
        for name, y in (("training", train_y), ("test", test_y)):
            if not len(y):
                raise UserError(f"There are no {name} images: that side of the split is empty.")
        if self.subset is None and len(present := train_y.unique()) == 1:
            raise UserError(
                f'All training images are of one class, "{self.class_names[int(present)]}", so '
                "that every encoder would score the same. Give images of two or more classes, or "
                "evaluate without labels."
            )

    @cached_property  # read in every step of training; the labels may be on a GPU
    def num_classes(self) -> int:
        """Number of classes of the training set."""
        assert self.train.labels is not None
        return max(len(self.train.class_names), int(self.train.labels.max()) + 1)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, or else their numbers."""
        names = self.train.class_names
        return (*names, *map(str, range(len(names), self.num_classes)))

    @property
    def store_size(self) -> int | None:
        """Short side of the images that are augmented; None for a store, which has its own."""
        return augmentation_size(self.transform) if isinstance(self.train, EvalImages) else None

    def images_to_augment(self) -> ImageStore:
        """The training images at their stored size, for random crops."""
        if not isinstance(self.train, EvalImages):
            return self.train
        transform = self.transform
        size = augmentation_size(transform)
        return self.train.pixels(size, transform.channels, transform.dtype)

    @cached_property  # read in every step of training; ImageNet's has ten megabytes
    def train_index(self) -> Int64[Tensor, " n"]:
        """Indices in `train` of the images to train on."""
        if self.subset is not None:
            return self.subset.cpu()
        return torch.arange(len(self.train)) if self.split is None else self.split.train

    @property
    def test_index(self) -> Int64[Tensor, " m"] | None:
        """Indices of the test images in `test`, or in `train` if there is no `test`; None: all."""
        if self.test is not None:
            return None
        return self.train_index if self.split is None else self.split.test

    @property
    def has_test_images(self) -> bool:
        """Whether there are test images that are not training images."""
        return self.test is not None or self.split is not None

    @property
    def num_candidates(self) -> int:
        """How many training images each test image is compared with, itself left out."""
        return len(self.train_index) - (not self.has_test_images)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on the labels that were read, and on classes in only one of the two sets."""
        train, test = (set(y.unique().tolist()) for y in self.labels())
        names = self.class_names
        notes = [*self.train.notes, *(self.test.notes if self.test is not None else ())]
        notes += (*self.subset_notes, *(self.split.notes if self.split else ()))
        if test_only := sorted(test - train):
            notes.append(
                f"{_list_classes(names, test_only)} in the test set but not in the training set, "
                "and never predicted."
            )
        if train_only := sorted(train - test):
            notes.append(
                f"{_list_classes(names, train_only)} in the training set but not in the test set."
            )
        return tuple(notes)

    def with_subset(
        self, subset: Int64[Tensor, " m"], name: str = "", notes: tuple[str, ...] = ()
    ) -> "LabeledData":
        """Return the same data, with only these images of `train` to train on."""
        name = name or self.subset_name
        return replace(self, subset=subset, subset_name=name, subset_notes=notes)

    @property
    def is_large(self) -> bool:
        """Whether the features of the training images may not fit in the memory of a GPU."""
        return len(self.train_index) > HOST_ROWS

    def features(
        self, backbone: nn.Module, *, on_host: bool = False
    ) -> tuple[Features, Features | None]:
        """Encode training and test images; both are labeled with the class numbers of `train`.

        With `on_host` the features of training images stay in host memory; their labels are on the
        device.
        """
        train_y, test_y = self.labels()
        train = self._encode(backbone, self.train, self.train_index, "training features", on_host)
        train = train._replace(y=train_y.to(train.index.device))
        if not self.has_test_images:
            return train, None
        test = self._encode_test(backbone)
        return train, test._replace(y=test_y.to(test.index.device))

    def test_features(self, backbone: nn.Module) -> Features:
        """Encode the test images alone."""
        test = self._encode_test(backbone)
        return test._replace(y=self.labels()[1].to(test.h.device))

    def labels(self) -> tuple[Int64[Tensor, " n"], Int64[Tensor, " m"]]:
        """Labels of the training and the test images, in the class numbers of `train`."""
        assert self.train.labels is not None
        labels = self.train.labels.cpu()
        train = labels[self.train_index]
        if self.split is not None:
            return train, labels[self.split.test]
        if self.test is None:
            return train, train
        assert self.test.labels is not None
        return train, self._class_mapping(self.test)[self.test.labels.cpu()]

    def _encode_test(self, backbone: nn.Module) -> Features:
        images = self.train if self.test is None else self.test
        return self._encode(backbone, images, self.test_index, "test features")

    def _encode(
        self,
        backbone: nn.Module,
        images: Images,
        index: Tensor | None,
        title: str,
        on_host: bool = False,
    ) -> Features:
        return features(
            backbone,
            images,
            self.transform,
            batch_size=self.batch_size,
            device=self.device,
            autocast=self.autocast,
            index=index,
            progress=title if self.progress else None,
            distributed=self.distributed,
            on_host=on_host,
        )

    def _class_mapping(self, test: Images) -> Int64[Tensor, " c"]:
        """The class number in `train` for each class number of the test set.

        Classes are numbered by name, so a set without some classes numbers the others differently.
        """
        known = list(self.train.class_names)
        if not known or not test.class_names:
            assert test.labels is not None
            highest = int(test.labels.max()) if len(test) else -1
            if highest >= self.num_classes:
                raise UserError(
                    f"The test images have labels up to {highest}, but the training images "
                    f"only up to {self.num_classes - 1}. Both must have the same class numbers."
                )
            return torch.arange(highest + 1)
        for name in test.class_names:
            if name not in known:
                raise UserError(
                    f'The test images have a class "{name}" that the training images lack.'
                    f"{suggest(name, known)} Both must use the same names."
                )
        return torch.tensor([known.index(name) for name in test.class_names])


def _check_labels(name: str, images: Images) -> None:
    if images.labels is None:
        raise UserError(
            f"The {name} images have no labels, which this evaluation needs. Put each "
            "class into its own sub-folder, or evaluate without labels."
        )
    if len(images) and int(images.labels.min()) < 0:
        raise UserError(
            f"Some {name} images have a label below 0, which often means that labels are "
            "withheld. Use a split whose labels are public."
        )


def _list_classes(names: tuple[str, ...], which: list[int]) -> str:
    """Return '2 classes ("a", "b") are' for these class numbers."""
    first = list_first([f'"{names[i]}"' for i in which])
    classes, are = ("class", "is") if len(which) == 1 else ("classes", "are")
    return f"{len(which)} {classes} ({first}) {are}"
