"""Linear probe by SGD on cached features: every learning rate with every weight decay, at once.

All settings are one tensor of weights, and a step for all of them is two matrix products. A
held-out tenth of the training set chooses, and the winner is trained again on all of it. The
solver of `linear.py` reaches the optimum that these approach and has no rate to choose, so that it
is the default; this one says which rate and decay would have won. (Digits, features of two
ResNets: 89.0 and 91.8 % here, by rate 0.3 and decay 0.01, 89.0 and 92.4 % solved.)
"""

from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from selfsight import rng
from selfsight.errors import UserError
from selfsight.evals.features import Features
from selfsight.evals.knn import accuracy
from selfsight.evals.labeled_data import LabeledData
from selfsight.evals.linear import check_has_test_images, hold_out_tenth, select_best, standardize
from selfsight.optim import cosine
from selfsight.progress import track


def sgd_sweep(
    x: Float[Tensor, "n d"],
    y: Int64[Tensor, " n"],
    settings: list[tuple[float, float]],
    *,
    num_classes: int,
    epochs: int,
    batch_size: int,
    momentum: float = 0.9,
    seed: int = 0,
    progress: str | None = None,
) -> Float[Tensor, "s d k"]:
    """Weights after SGD with a cosine schedule, for each (rate, decay); the last row is biases."""
    rate, decay = (x.new_tensor(column)[:, None, None] for column in zip(*settings, strict=True))
    decay = decay.repeat(1, x.shape[1], 1)
    decay[:, -1] = 0
    weights = x.new_zeros(len(settings), x.shape[1], num_classes)
    speed = torch.zeros_like(weights)
    batch_size = min(batch_size, len(x))
    per_epoch = len(x) // batch_size
    key, total = rng.key(seed, "order"), epochs * per_epoch
    for step in track(range(total), progress, total):
        epoch, number = divmod(step, per_epoch)
        if number == 0:
            order = rng.permutation(key, len(x), epoch, x.device)
        rows = order[number * batch_size : (number + 1) * batch_size]
        log_p = torch.einsum("nd,sdk->snk", x[rows], weights).log_softmax(dim=-1)
        own = y[rows].expand(len(settings), -1)[..., None]
        error = log_p.exp().scatter_add(2, own, -torch.ones_like(own, dtype=x.dtype))
        slope = torch.einsum("nd,snk->sdk", x[rows], error) / len(rows)
        speed = momentum * speed + slope + decay * weights
        weights = weights - rate * float(cosine(step / total, 1.0, 0.0)) * speed
    return weights


@dataclass(frozen=True, kw_only=True)
class SGDGrid:
    """What is tried, and for how long."""

    rates: tuple[float, ...] = (1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)
    weight_decays: tuple[float, ...] = (0.0, 1e-5, 1e-4, 1e-3, 1e-2)
    epochs: int = 100
    batch_size: int = 1024

    def __post_init__(self) -> None:
        if not (self.rates and self.weight_decays and min(self.rates) > 0):
            raise UserError("Give one or more rates above 0 and one or more weight decays.")
        if self.epochs < 1 or self.batch_size < 1:
            raise UserError("epochs and batch_size must be 1 or more.")


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearSGDProbe:
    """Share of images that the linear classifier of the best rate and decay gets right."""

    data: LabeledData
    grid: SGDGrid = SGDGrid()
    seed: int = 0

    def __post_init__(self) -> None:
        check_has_test_images(self.data)

    def __call__(self, backbone: nn.Module) -> dict[str, float]:
        """The evaluator's numbers for a backbone."""
        return self.score(*self.data.features(backbone))

    def score(self, train: Features, test: Features | None) -> dict[str, float]:
        """Accuracy on the test set, and the setting that the held-out tenth chose."""
        assert test is not None and train.y is not None and test.y is not None
        x, y = standardize(train.h, train.h), train.y
        grid = list(product(self.grid.rates, self.grid.weight_decays))
        part = hold_out_tenth(y, seed=self.seed)
        if part is None:
            raise UserError("Every class has a single image, so that none can choose the rate.")
        tried = self._trained(x[part.train], y[part.train], grid)
        logits = torch.einsum("nd,sdk->snk", x[part.test], tried)
        choice = select_best(logits, y[part.test])
        rate, decay = grid[choice.winner]
        final = self._trained(x, y, [(rate, decay)])[0]
        guesses = (standardize(test.h, train.h) @ final).argmax(dim=1)
        return {
            "accuracy": accuracy(guesses, test.y),
            "held_out_accuracy": choice.accuracy,
            "rate": rate,
            "weight_decay": decay,
        }

    def settings(self) -> dict[str, Any]:
        """What decided the number, for the result file."""
        return {
            "solver": "SGD, momentum 0.9, cosine",
            "standardized": True,
            **asdict(self.grid),
            "held_out_share": 0.1,
            "seed": self.seed,
        }

    def _trained(self, x: Tensor, y: Tensor, grid: list[tuple[float, float]]) -> Tensor:
        return sgd_sweep(
            x,
            y,
            grid,
            num_classes=self.data.num_classes,
            epochs=self.grid.epochs,
            batch_size=self.grid.batch_size,
            seed=self.seed,
            progress=f"{len(grid)} linear probes" if self.data.progress else None,
        )
