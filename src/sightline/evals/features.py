"""Features of many pictures at once, and the labelled sets that evaluators compare."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn

from sightline.data import Pictures
from sightline.errors import UserError, nearest
from sightline.evals.splits import Split
from sightline.views import Centre, centre

SHOW_AFTER = 2.0  # seconds; a bar for less only flickers


class Features(NamedTuple):
    """What a backbone says about some pictures of a set."""

    h: Float[Tensor, "m d"]  # at least float32
    y: Int64[Tensor, " m"] | None  # labels, where the set has them
    index: Int64[Tensor, " m"]  # type: ignore[assignment]  # which pictures of the set these are


def features(
    backbone: nn.Module,
    pictures: Pictures,
    spec: Centre,
    *,
    batch_size: int = 256,
    device: torch.device | str | None = None,
    autocast: torch.dtype | None = None,
    index: Int64[Tensor, " m"] | None = None,
    progress: str | None = None,
) -> Features:
    """Features of the evaluation view of all pictures, or of those in `index`, without a graph.

    `device` is where the backbone is, unless told; `progress` is what a bar says if this takes
    more than a moment.
    """
    index = torch.arange(len(pictures)) if index is None else index.cpu()
    device = torch.device(device) if device else device_of(backbone)
    rows: list[Tensor] = []
    with evaluating(backbone):
        for part in shown(index.split(batch_size), progress):
            pixels, sizes = pictures.batch(part)
            x = centre(pixels.to(device), sizes.to(device), spec)
            rows.append(encode(backbone, x, autocast))
    y = None if pictures.labels is None else pictures.labels[index.to(pictures.labels.device)]
    return Features(torch.cat(rows), None if y is None else y.to(device), index.to(device))


@torch.no_grad()
def encode(
    backbone: nn.Module, x: Float[Tensor, "n c h w"], autocast: torch.dtype | None = None
) -> Float[Tensor, "n d"]:
    """Feature rows of a batch, in at least float32, without a graph."""
    own = next(backbone.parameters(), x)
    with torch.autocast(x.device.type, autocast, enabled=autocast is not None):
        h = backbone(x.to(own.dtype))
    return h.to(torch.promote_types(h.dtype, torch.float32))


def device_of(backbone: nn.Module) -> torch.device:
    """Where the weights are."""
    return next((p.device for p in backbone.parameters()), torch.device("cpu"))


@contextmanager
def evaluating(backbone: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; afterwards every part is back in the mode it had."""
    modes = [(module, module.training) for module in backbone.modules()]
    backbone.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def shown(steps: Iterable[Tensor], title: str | None) -> Iterator[Tensor]:
    """The steps, with a bar on a terminal once they have taken a moment."""
    todo = list(steps)
    console = Console(stderr=True)
    bar = Progress(console=console, transient=True)
    task = bar.add_task(title or "", total=len(todo))
    since = time.monotonic()
    started = False
    try:
        for step in todo:
            late = time.monotonic() - since > SHOW_AFTER
            if title and late and not started and console.is_terminal:
                bar.start()
                started = True
            yield step
            bar.advance(task)
    finally:
        if started:
            bar.stop()


@dataclass(frozen=True, kw_only=True, eq=False)
class Labelled:
    """Labelled pictures to learn from and to be scored on; evaluators add how.

    The scored pictures are those of `test`; without it those of `split.test`, learnt from
    `split.train`, both of `train`; without either it depends on the evaluator.
    """

    train: Pictures
    test: Pictures | None = None
    spec: Centre
    split: Split | None = None
    batch_size: int = 256
    device: torch.device | None = None  # None: where the backbone is
    autocast: torch.dtype | None = None
    progress: bool = False

    def __post_init__(self) -> None:
        for name, pictures in (("training", self.train), ("test", self.test)):
            if pictures is None:
                continue
            if pictures.labels is None:
                raise UserError(
                    f"The {name} pictures have no labels, which this evaluation needs. Put each "
                    "class into its own sub-folder, or evaluate without labels."
                )
            if len(pictures) and int(pictures.labels.min()) < 0:
                raise UserError(
                    f"Some {name} pictures have a label below 0, which often means that labels are "
                    "withheld. Take a split whose labels are public."
                )
        if self.test is not None:
            if self.split is not None:
                raise UserError("Give test pictures or a split of the training pictures, not both.")
            self._translation(self.test)

    @property
    def num_classes(self) -> int:
        """How many classes there are to choose from."""
        assert self.train.labels is not None
        return max(len(self.train.class_names), int(self.train.labels.max()) + 1)

    def features(self, backbone: nn.Module) -> tuple[Features, Features | None]:
        """Features of what is learnt from and of what is scored; labels mean the same in both."""

        def of(pictures: Pictures, index: Tensor | None, title: str) -> Features:
            return features(
                backbone,
                pictures,
                self.spec,
                batch_size=self.batch_size,
                device=self.device,
                autocast=self.autocast,
                index=index,
                progress=title if self.progress else None,
            )

        train_y, test_y = self.labels()
        inside = self.split
        train = of(self.train, inside and inside.train, "training features")
        train = train._replace(y=train_y.to(train.h.device))
        if self.test is None and inside is None:
            return train, None
        scored = self.train if self.test is None else self.test
        test = of(scored, inside and inside.test, "test features")
        return train, test._replace(y=test_y.to(train.h.device))

    def labels(self) -> tuple[Int64[Tensor, " n"], Int64[Tensor, " m"]]:
        """Labels of what is learnt from and of what is scored, by the training set's numbers."""
        assert self.train.labels is not None
        train = self.train.labels.cpu()
        if self.split is not None:
            return train[self.split.train], train[self.split.test]
        if self.test is None:
            return train, train
        assert self.test.labels is not None
        return train, self._translation(self.test)[self.test.labels.cpu()]

    def _translation(self, test: Pictures) -> Int64[Tensor, " c"]:
        """The training set's number for each class of the test set.

        Classes are numbered by name within a set, so a set that lacks one numbers the rest anew.
        """
        known = list(self.train.class_names)
        if not known or not test.class_names:
            assert test.labels is not None
            return torch.arange(int(test.labels.max()) + 1 if len(test) else 0)
        for name in test.class_names:
            if name not in known:
                raise UserError(
                    f'The test pictures have a class "{name}" that the training pictures lack.'
                    f"{nearest(name, known)} Both must use the same names."
                )
        return torch.tensor([known.index(name) for name in test.class_names])
