"""Linear support vector machines, one per class, as VISSL scores features on VOC07.

Goyal et al. 2019 (arXiv:1905.01235) and facebookresearch/vissl, svm_utils: unit features, squared
hinge, l2, positives weighted twice. The cost of each class is selected by the mean average
precision of three folds (as scikit-learn computes it). The result is the mean over classes of the
average precision on the test images (interpolated at every recall).
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int8
from torch import Tensor, nn

from selfsight.check_settings import POSITIVE, Range, check_setting
from selfsight.data.cgroup_limits import available_cpus
from selfsight.errors import UserError
from selfsight.evals.eval_images import describe_transform
from selfsight.evals.extract_features import Features
from selfsight.evals.labeled_data import LabeledData
from selfsight.evals.multilabel_ap import average_precision, resample_mean_average_precision
from selfsight.evals.multilabel_data import (
    IGNORED,
    PRESENT,
    MultilabelData,
    MultilabelFeatures,
    as_multilabel,
    one_hot,
)
from selfsight.evals.prediction_scores import PerImage, Scores, score_per_image
from selfsight.evals.svm_solver import fit_costs
from selfsight.terminal.progress import track

COSTS = (0.01, 0.1, 1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 50.0, 100.0, 1000.0)


class ClassFit(NamedTuple):
    """One class: its test scores, with the cost that cross-validation selected."""

    fold_precision: float  # in cross-validation
    scores: Float[np.ndarray, " m"]
    converged: bool  # before max_steps


@dataclass(frozen=True, kw_only=True, eq=False)
class SVM:
    """Mean average precision of a linear SVM for each class."""

    data: LabeledData | MultilabelData
    costs: tuple[float, ...] = COSTS
    folds: int = 3
    positive_weight: float = 2.0
    max_steps: int = 100  # of Newton's method
    seed: int = 0
    workers: int | None = None  # threads; None: as many as there are cores
    progress: bool = False

    def __post_init__(self) -> None:
        check_setting("costs", self.costs, tuple[float, ...], POSITIVE)
        check_setting("folds", self.folds, int, Range(2))
        if not self.costs:
            raise UserError("costs is empty. Give one or more numbers.")

    def __call__(self, backbone: nn.Module) -> Scores:
        """Return the numbers for a backbone."""
        if isinstance(self.data, MultilabelData):
            return self.score(*self.data.features(backbone))
        train, test = self.data.features(backbone)
        if test is None:
            raise UserError("An SVM is scored on images it was not trained on. Give a test set.")
        return self.score(self._to_multilabel(train), self._to_multilabel(test))

    def score(self, train: MultilabelFeatures, test: MultilabelFeatures) -> Scores:
        """Mean average precision over the classes, and that of each class."""
        x, test_x = normalize_rows(train.h), normalize_rows(test.h)
        classes, _ = self._scorable_classes(train.y, test.y)
        names = self.data.class_names
        fits = self._fit(x, train.y, test_x, classes)
        y, scores = test.y[:, classes].numpy(), np.stack([fit.scores for fit in fits], axis=1)
        precisions, eleven = [], []
        for scored, labels in zip(scores.T, y.T, strict=True):
            counted = labels != IGNORED
            present = labels[counted] == PRESENT
            precisions.append(average_precision(scored[counted], present))
            eleven.append(average_precision(scored[counted], present, points="11"))
        drawn = resample_mean_average_precision(scores, y == PRESENT, y != IGNORED)
        replicates = {
            "map": np.array([np.mean(precisions), *drawn[0]]),
            "map_11_point": np.array([np.mean(eleven), *drawn[1]]),
        }
        return {
            **score_per_image(PerImage(n=len(y), values={}, replicates=replicates)),
            "fold_map": float(np.mean([fitted.fold_precision for fitted in fits])),
            "classes": float(len(classes)),
            "not_converged": float(sum(not fitted.converged for fitted in fits)),
            **{f"ap_{names[c]}": value for c, value in zip(classes, precisions, strict=True)},
        }

    def settings(self) -> dict[str, Any]:
        """The settings that decided the numbers, for the result file."""
        data = self.data
        multilabel = isinstance(data, MultilabelData)
        data_settings: dict[str, Any] = {}
        if isinstance(data, MultilabelData):
            view = f"{data.transform.size} px, resized to squares"
            data_settings = {
                "train": len(data.train_y),
                "test": len(data.test_y),
                "view": view,
                "transform": describe_transform(data.train, data.transform),
            }
        return {
            "solver": "Newton, squared hinge, l2, relative error of the weights at most 1e-4",
            "costs": list(self.costs),
            "folds": self.folds,
            "positive_weight": self.positive_weight,
            "max_steps": self.max_steps,
            "average_precision": "at every recall (VISSL); map_11_point: at 11 (VOC07)",
            "rows": "unit length" + (", last maps pooled 6 x 6 if a ResNet" if multilabel else ""),
            "seed": self.seed,
            "notes": list(self.notes()),
            **data_settings,
        }

    def notes(self) -> tuple[str, ...]:
        """The classes that cannot be scored, and why."""
        if isinstance(self.data, MultilabelData):
            return self._scorable_classes(self.data.train_y, self.data.test_y)[1]
        train_y, test_y = (one_hot(y, self.data.num_classes) for y in self.data.labels())
        return self._scorable_classes(train_y, test_y)[1]

    def _to_multilabel(self, x: Features) -> MultilabelFeatures:
        assert x.y is not None and isinstance(self.data, LabeledData)
        return MultilabelFeatures(x.h, one_hot(x.y, self.data.num_classes))

    def _scorable_classes(
        self, train: Int8[Tensor, "n c"], test: Int8[Tensor, "m c"]
    ) -> tuple[list[int], tuple[str, ...]]:
        """Classes with enough images in both sets, and a sentence on each of the others."""
        classes, notes, names = [], [], self.data.class_names
        for c in range(train.shape[1]):
            positives = int((train[:, c] == PRESENT).sum())
            negatives = len(train) - positives
            if min(positives, negatives) < self.folds:
                notes.append(
                    f'Class "{names[c]}" is left out: {positives} training images have it '
                    f"and {negatives} do not, but {self.folds} folds need {self.folds} of each."
                )
            elif not bool((test[:, c] == PRESENT).any()):
                notes.append(f'Class "{names[c]}" is left out: no test image has it.')
            else:
                classes.append(c)
        if not classes:
            raise UserError(f"No class can be scored. {' '.join(notes[:3])}")
        return classes, tuple(notes)

    def _fit(
        self,
        x: Float[Tensor, "n d"],
        y: Int8[Tensor, "n c"],
        test_x: Float[Tensor, "m d"],
        classes: list[int],
    ) -> list[ClassFit]:
        """Fit each class in its own thread; the result is the same for any number of threads."""
        title = "support vector machines" if self.progress else None
        workers = self.workers or available_cpus()
        with _one_thread_per_operation(), ThreadPoolExecutor(workers) as pool:
            # Images with only difficult objects are negatives in training, as in VISSL.
            fits = pool.map(lambda c: self._fit_class(x, y[:, c] == PRESENT, test_x), classes)
            return list(track(fits, title, total=len(classes)))

    def _fit_class(
        self, x: Float[Tensor, "n d"], present: Bool[Tensor, " n"], test_x: Float[Tensor, "m d"]
    ) -> ClassFit:
        from sklearn.metrics import average_precision_score  # a second to import
        from sklearn.model_selection import StratifiedKFold

        settings: dict[str, Any] = {
            "positive_weight": self.positive_weight,
            "max_steps": self.max_steps,
        }
        precisions, weights = [], []
        truth = present.numpy()
        for train, held_out in StratifiedKFold(self.folds).split(truth, truth):
            fold = fit_costs(x[train], present[train], self.costs, **settings)
            scores = (x[held_out] @ torch.stack([fit.weights for fit in fold]).T).numpy()
            precisions.append([average_precision_score(truth[held_out], s) for s in scores.T])
            weights.append([fit.weights for fit in fold])
        means = np.mean(precisions, axis=0)
        best = int(np.argmax(means))  # ties go to the first
        start = torch.stack([fold[best] for fold in weights]).mean(dim=0)
        (svm,) = fit_costs(x, present, (self.costs[best],), start=start, **settings)
        return ClassFit(float(means[best]), (test_x @ svm.weights).numpy(), svm.converged)


@contextmanager
def _one_thread_per_operation() -> Iterator[None]:
    """Compute each operation in one thread: several would sum in another order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


VISSL = "Goyal et al. 2019 (arXiv:1905.01235), facebookresearch/vissl"

# The source, and whether images are resized to squares and maps pooled as in VISSL.
PUBLISHED = {
    "svm": (f"{VISSL}; on the features of the evaluation view", False),
    "svm.voc07": (f"{VISSL}; images resized to squares, last maps pooled", True),
}


def build_published_svm(name: str, data: LabeledData, *, seed: int = 0) -> SVM:
    """Build a protocol of PUBLISHED for images with one class each."""
    as_vissl = PUBLISHED[name][1]
    return SVM(data=as_multilabel(data) if as_vissl else data, seed=seed, progress=data.progress)


def normalize_rows(h: Float[Tensor, "n d"]) -> Float[Tensor, "n {h.shape[1]+1}"]:
    """Scale rows to length one in float64, and append a 1, whose weight is the bias.

    Values that are not finite become 0.
    """
    x = h.nan_to_num(0.0, 0.0, 0.0).double().cpu()
    return F.pad(x / (x.norm(dim=1, keepdim=True) + 1e-5), (0, 1), value=1.0)
