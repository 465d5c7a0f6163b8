"""Linear support vector machines, one for each class, as VISSL scores features on VOC07.

Goyal et al. 2019 (arXiv:1905.01235) and facebookresearch/vissl, svm_utils: unit features, squared
hinge, l2, positives weighted twice, the cost of each class chosen by the mean average precision of
three folds (as scikit-learn counts it), and the mean over classes of the average precision on the
test images (interpolated at every recall).
"""

import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int8
from torch import Tensor, nn

from selfsight.errors import UserError
from selfsight.evals.features import Features
from selfsight.evals.labeled_data import LabeledData
from selfsight.evals.multilabel import (
    PRESENT,
    UNCOUNTED,
    MultilabelData,
    MultilabelFeatures,
    as_multilabel,
    one_hot,
)
from selfsight.evals.multilabel_ap import average_precision
from selfsight.progress import track

COSTS = (0.01, 0.1, 1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 50.0, 100.0, 1000.0)


class ClassFit(NamedTuple):
    """One class: the cost that the folds chose, what they said of it, and the scores it gives."""

    cost: float
    fold_precision: float
    scores: Float[np.ndarray, " m"]
    settled: bool  # the solver came to its end before the most steps it may take


@dataclass(frozen=True, kw_only=True, eq=False)
class SVM:
    """Mean average precision of a linear SVM for each class."""

    data: LabeledData | MultilabelData
    costs: tuple[float, ...] = COSTS
    folds: int = 3
    positive_weight: float = 2.0
    max_steps: int = 2000
    seed: int = 0
    workers: int | None = None  # threads; None: as many as there are cores
    progress: bool = False

    def __post_init__(self) -> None:
        if not self.costs or min(self.costs) <= 0:
            raise UserError(f"costs is {self.costs}. Give one or more numbers above 0.")
        if self.folds < 2:
            raise UserError(f"folds is {self.folds}. To choose a cost takes 2 or more.")

    def __call__(self, backbone: nn.Module) -> dict[str, float]:
        """The evaluator's numbers for a backbone."""
        if isinstance(self.data, MultilabelData):
            return self.score(*self.data.features(backbone))
        train, test = self.data.features(backbone)
        if test is None:
            raise UserError("An SVM is scored on other images. Give it a test set.")
        return self.score(self._marked(train), self._marked(test))

    def score(self, train: MultilabelFeatures, test: MultilabelFeatures) -> dict[str, float]:
        """Mean average precision over the classes, and that of each class."""
        x, probes = normalized(train.h), normalized(test.h)
        kept, _ = self._classes(train.y, test.y)
        found = self._fit(x, train.y.numpy(), probes, kept)
        own, eleven = [], []
        for c, fitted in zip(kept, found, strict=True):
            counted = test.y[:, c].numpy() != UNCOUNTED
            present = test.y[:, c].numpy()[counted] == PRESENT
            own.append(average_precision(fitted.scores[counted], present))
            eleven.append(average_precision(fitted.scores[counted], present, points="11"))
        return {
            "map": float(np.mean(own)),
            "map_11_point": float(np.mean(eleven)),
            "fold_map": float(np.mean([fitted.fold_precision for fitted in found])),
            "classes": float(len(kept)),
            "unsettled": float(sum(not fitted.settled for fitted in found)),
            **{f"ap_{self._name(c)}": value for c, value in zip(kept, own, strict=True)},
        }

    def settings(self) -> dict[str, Any]:
        """What decided the numbers, for the result file."""
        data = self.data
        marked = isinstance(data, MultilabelData)
        seen = {}
        if isinstance(data, MultilabelData):
            view = f"{data.size} px, squashed"
            seen = {"train": len(data.train_y), "test": len(data.test_y), "view": view}
        return {
            "solver": "liblinear, squared hinge, l2, dual",
            "costs": list(self.costs),
            "folds": self.folds,
            "positive_weight": self.positive_weight,
            "max_steps": self.max_steps,
            "average_precision": "at every recall (VISSL); map_11_point: at 11 (VOC07)",
            "rows": "unit length" + (", last maps pooled 6 x 6 if a ResNet" if marked else ""),
            "seed": self.seed,
            "notes": list(self.notes()),
            **seen,
        }

    def notes(self) -> tuple[str, ...]:
        """Which classes could not be scored, and why."""
        if isinstance(self.data, MultilabelData):
            return self._classes(self.data.train_y, self.data.test_y)[1]
        learned, scored = (one_hot(y, self.data.num_classes) for y in self.data.labels())
        return self._classes(learned, scored)[1]

    def _marked(self, found: Features) -> MultilabelFeatures:
        assert found.y is not None and isinstance(self.data, LabeledData)
        return MultilabelFeatures(found.h, one_hot(found.y, self.data.num_classes))

    def _name(self, c: int) -> str:
        data = self.data
        names = data.class_names if isinstance(data, MultilabelData) else data.train.class_names
        return names[c] if names else str(c)

    def _classes(
        self, train: Int8[Tensor, "n c"], test: Int8[Tensor, "m c"]
    ) -> tuple[list[int], tuple[str, ...]]:
        """Classes with enough images on both sides, and a sentence on each of the others."""
        kept, notes = [], []
        for c in range(train.shape[1]):
            there = int((train[:, c] == PRESENT).sum())
            rest, scored = len(train) - there, int((test[:, c] == PRESENT).sum())
            if min(there, rest) < self.folds:
                notes.append(
                    f'Of class "{self._name(c)}" {there} images to learn from have it and {rest} '
                    f"do not; {self.folds} folds need {self.folds} of each, so it is left out."
                )
            elif not scored:
                notes.append(f'No test image has class "{self._name(c)}", so it is left out.')
            else:
                kept.append(c)
        if not kept:
            raise UserError(f"No class can be scored. {' '.join(notes[:3])}")
        return kept, tuple(notes)

    def _fit(
        self,
        x: Float[np.ndarray, "n d"],
        y: Int8[np.ndarray, "n c"],
        probes: Float[np.ndarray, "m d"],
        classes: list[int],
    ) -> list[ClassFit]:
        """All classes, several at a time: liblinear lets other threads run while it solves."""
        from sklearn.exceptions import ConvergenceWarning  # a second to import
        from sklearn.utils.parallel import Parallel, delayed

        # Difficult ones are learned as absent, as VISSL does, and not scored.
        jobs = (delayed(self._one)(x, y[:, c] == PRESENT, probes) for c in classes)
        many = Parallel(n_jobs=self.workers or -1, prefer="threads", return_as="generator")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # `unsettled` counts them
            title = "support vector machines" if self.progress else None
            return list(track(many(jobs), title, total=len(classes)))

    def _one(
        self,
        x: Float[np.ndarray, "n d"],
        present: Bool[np.ndarray, " n"],
        probes: Float[np.ndarray, "m d"],
    ) -> ClassFit:
        from sklearn.model_selection import cross_val_score

        means = [
            float(
                cross_val_score(
                    self._machine(cost), x, present, cv=self.folds, scoring="average_precision"
                ).mean()
            )
            for cost in self.costs
        ]
        best = int(np.argmax(means))  # of equals the first, which is the lower cost
        machine = self._machine(self.costs[best]).fit(x, present)
        scores = machine.decision_function(probes)
        settled = int(np.max(machine.n_iter_)) < self.max_steps
        return ClassFit(self.costs[best], means[best], scores, settled)

    def _machine(self, cost: float) -> Any:
        from sklearn.svm import LinearSVC

        return LinearSVC(
            C=cost,
            class_weight={True: self.positive_weight, False: 1.0},
            penalty="l2",
            loss="squared_hinge",
            dual=True,
            tol=1e-4,
            intercept_scaling=1.0,
            max_iter=self.max_steps,
            random_state=self.seed,
        )


VISSL = "Goyal et al. 2019 (arXiv:1905.01235), facebookresearch/vissl"

# Who published it, and whether images are squashed and maps pooled as there.
PUBLISHED = {
    "svm": (f"{VISSL}; on the features of the evaluation view", False),
    "svm.voc07": (f"{VISSL}; squashed images, last maps pooled", True),
}


def published(name: str, data: LabeledData, *, seed: int = 0) -> SVM:
    """A protocol of PUBLISHED on images with one class each."""
    whole = PUBLISHED[name][1]
    return SVM(data=as_multilabel(data) if whole else data, seed=seed, progress=data.progress)


def normalized(h: Float[Tensor, "n d"]) -> Float[np.ndarray, "n d"]:
    """Rows of length one in float64, as liblinear takes them; rows that are not finite are 0."""
    x = h.nan_to_num(0.0, 0.0, 0.0).double().cpu().numpy()
    return x / (np.linalg.norm(x, axis=1, keepdims=True) + 1e-5)
