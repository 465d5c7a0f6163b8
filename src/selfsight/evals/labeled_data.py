"""Labeled images to learn from and to be scored on, as evaluators with labels take them."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from selfsight.data import ImageStore
from selfsight.errors import UserError, suggest
from selfsight.evals.features import Features, features
from selfsight.evals.splits import Split
from selfsight.views import EvalView


@dataclass(frozen=True, kw_only=True, eq=False)
class LabeledData:
    """The scored images are those of `test`; without it those of `split.test`, of `train`.

    What is learned from is `few`, or else `split.train`, or else all of `train`. Without `test` and
    `split` it depends on the evaluator what is scored.
    """

    train: ImageStore
    test: ImageStore | None = None
    spec: EvalView
    split: Split | None = None
    few: Int64[Tensor, " m"] | None = None
    few_words: str = ""  # how many those are, for a reader
    batch_size: int = 256  # images encoded at a time
    device: torch.device | None = None  # None: where the backbone is
    autocast: torch.dtype | None = None
    progress: bool = False
    shared: bool = False  # every process calls the evaluator, and takes a share of the work

    def __post_init__(self) -> None:
        for name, images in (("training", self.train), ("test", self.test)):
            if images is not None:
                _check(name, images)
        if self.test is not None:
            if self.split is not None:
                raise UserError("Give test images or a split of the training images, not both.")
            self._translation(self.test)
        for name, y in zip(("to learn from", "to be scored on"), self.labels(), strict=True):
            if not len(y):
                raise UserError(f"There are no images {name}: that side of the split is empty.")

    @property
    def num_classes(self) -> int:
        """How many classes there are to choose from."""
        assert self.train.labels is not None
        return max(len(self.train.class_names), int(self.train.labels.max()) + 1)

    @property
    def learned(self) -> Int64[Tensor, " n"]:
        """Which of the training images are learned from."""
        if self.few is not None:
            return self.few.cpu()
        return torch.arange(len(self.train)) if self.split is None else self.split.train

    @property
    def apart(self) -> bool:
        """Whether the scored images are others than those that are learned from."""
        return self.test is not None or self.split is not None

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the numbers should know of the classes."""
        learned, scored = (set(y.unique().tolist()) for y in self.labels())
        names = self.train.class_names or tuple(map(str, range(self.num_classes)))
        found = list(self.split.notes if self.split else ())
        if never := sorted(scored - learned):
            found.append(
                f"{_named(names, never)} scored but not learned from, so never guessed right."
            )
        if unseen := sorted(learned - scored):
            found.append(f"{_named(names, unseen)} learned from but not scored.")
        return tuple(found)

    def only(self, few: Int64[Tensor, " m"], words: str = "") -> "Labeled":
        """The same images, of which only these are learned from."""
        return replace(self, few=few, few_words=words or self.few_words)

    def features(self, backbone: nn.Module) -> tuple[Features, Features | None]:
        """Features of what is learned from and of what is scored; labels mean the same in both."""
        train_y, test_y = self.labels()
        train = self._features(backbone, self.train, self.learned, "training features")
        train = train._replace(y=train_y.to(train.h.device))
        if not self.apart:
            return train, None
        test = self._scored_features(backbone)
        return train, test._replace(y=test_y.to(train.h.device))

    def scored(self, backbone: nn.Module) -> Features:
        """Features of what is scored alone."""
        found = self._scored_features(backbone)
        return found._replace(y=self.labels()[1].to(found.h.device))

    def labels(self) -> tuple[Int64[Tensor, " n"], Int64[Tensor, " m"]]:
        """Labels of what is learned from and of what is scored, by the training set's numbers."""
        assert self.train.labels is not None
        train = self.train.labels.cpu()
        learned = train[self.learned]
        if self.split is not None:
            return learned, train[self.split.test]
        if self.test is None:
            return learned, learned
        assert self.test.labels is not None
        return learned, self._translation(self.test)[self.test.labels.cpu()]

    def _scored_features(self, backbone: nn.Module) -> Features:
        if self.test is not None:
            return self._features(backbone, self.test, None, "test features")
        index = self.learned if self.split is None else self.split.test
        return self._features(backbone, self.train, index, "test features")

    def _features(
        self, backbone: nn.Module, images: ImageStore, index: Tensor | None, title: str
    ) -> Features:
        return features(
            backbone,
            images,
            self.spec,
            batch_size=self.batch_size,
            device=self.device,
            autocast=self.autocast,
            index=index,
            progress=title if self.progress else None,
            shared=self.shared,
        )

    def _translation(self, test: ImageStore) -> Int64[Tensor, " c"]:
        """The training set's number for each class of the test set.

        Classes are numbered by name within a set, so a set that lacks one numbers the rest anew.
        """
        known = list(self.train.class_names)
        if not known or not test.class_names:
            assert test.labels is not None
            highest = int(test.labels.max()) if len(test) else -1
            if highest >= self.num_classes:
                raise UserError(
                    f"The test images have labels up to {highest}, but the training images "
                    f"only up to {self.num_classes - 1}. Both must number the classes alike."
                )
            return torch.arange(highest + 1)
        for name in test.class_names:
            if name not in known:
                raise UserError(
                    f'The test images have a class "{name}" that the training images lack.'
                    f"{suggest(name, known)} Both must use the same names."
                )
        return torch.tensor([known.index(name) for name in test.class_names])


def _check(name: str, images: ImageStore) -> None:
    if images.labels is None:
        raise UserError(
            f"The {name} images have no labels, which this evaluation needs. Put each "
            "class into its own sub-folder, or evaluate without labels."
        )
    if len(images) and int(images.labels.min()) < 0:
        raise UserError(
            f"Some {name} images have a label below 0, which often means that labels are "
            "withheld. Take a split whose labels are public."
        )


def _named(names: tuple[str, ...], which: list[int]) -> str:
    """'3 classes ("a", "b", ...) are', from their numbers."""
    first = ", ".join(f'"{names[i]}"' for i in which[:5]) + (", ..." if len(which) > 5 else "")
    return (
        f"{len(which)} class ({first}) is"
        if len(which) == 1
        else (f"{len(which)} classes ({first}) are")
    )
