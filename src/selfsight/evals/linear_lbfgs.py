"""Linear probe: multinomial logistic regression on standardized features, solved by L-BFGS.

Features are standardized by the training set (a batch norm without weights), because encoders
differ in scale by orders of magnitude, which is why published protocols have learning rates from
0.1 to 30. The problem is then convex: L-BFGS solves it for several weight decays at once, and a
held-out tenth of the training set, never the test set, selects one (as for CLIP's probe,
arXiv:2103.00020, appendix A.3). The problem is solved again with it on the whole training set.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from selfsight.check_settings import NOT_NEGATIVE, check_setting
from selfsight.errors import UserError
from selfsight.evals.extract_features import Features
from selfsight.evals.labeled_data import LabeledData
from selfsight.evals.prediction_scores import Scores, score_predictions
from selfsight.evals.stratified_splits import Split, stratified
from selfsight.terminal.progress import track

MAX_LOGITS = 1 << 26  # in memory at a time: 256 MiB in float32
HISTORY = 10  # past steps from which L-BFGS estimates the curvature
CONVEXITY = (1e-8, 1e-3)  # lower bound where weight decay is 0, and of the biases without decay
MAX_HALVINGS = 10  # of a step that does not lower the loss
MAX_STALLS = 4
WEIGHT_DECAYS = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)


def logistic_regression(
    x: Float[Tensor, "n d"],
    y: Int64[Tensor, " n"],
    *,
    weight_decays: tuple[float, ...],
    num_classes: int,
    max_steps: int = 1000,
    tolerance: float = 1e-6,
    start: Float[Tensor, "s d c"] | None = None,
    progress: str | None = None,
) -> Float[Tensor, "s d c"]:
    """Minimize mean cross-entropy + decay / 2 * |weights|^2 for each weight decay.

    The last column of x must be 1: its weights are the biases and are not decayed. Weight decay
    bounds the distance from the minimum: loss - minimum <= |gradient|^2 / (2 decay). A problem is
    solved when that is at most `tolerance` * loss.
    """
    decay = x.new_tensor(weight_decays)[:, None, None].repeat(1, x.shape[1], 1)
    decay[:, -1] = 0
    weights = x.new_zeros(len(weight_decays), x.shape[1], num_classes) if start is None else start
    loss, grad = _objective(weights, x, y, decay)
    convexity = decay[:, :1].clamp(*CONVEXITY)
    # The curvature is at most half the mean squared norm of a row.
    scale = (2 / x.pow(2).sum(dim=1).mean()).expand(len(weights), 1, 1)
    past: list[tuple[Tensor, Tensor, Tensor]] = []
    solved = _dot(grad, grad) <= 2 * tolerance * convexity * loss
    stalls = torch.zeros_like(solved, dtype=torch.long)  # steps in a row without progress
    for _ in track(range(max_steps), progress):
        if bool(solved.all()):
            break
        direction = -_apply_inverse_hessian(grad, past, scale).masked_fill(solved, 0)
        slope = _dot(grad, direction)
        length = torch.ones_like(slope)
        for _ in range(MAX_HALVINGS):
            new = weights + length * direction
            new_loss, new_grad = _objective(new, x, y, decay)
            lower = new_loss <= loss + 1e-4 * length * slope
            if bool(lower.all()):
                break
            length = torch.where(lower, length, length / 2)
        new, new_grad = torch.where(lower, new, weights), torch.where(lower, new_grad, grad)
        step, grad_change = new - weights, new_grad - grad
        curvature = _dot(step, grad_change)
        usable = curvature > 0
        past = [*past, (step, grad_change, torch.where(usable, 1 / curvature, 0))][-HISTORY:]
        scale = torch.where(usable, curvature / _dot(grad_change, grad_change), scale)
        # A loss that no longer falls by more than rounding has reached the limit of the dtype.
        moved = lower & (loss - new_loss > torch.finfo(x.dtype).eps * loss)
        stalls = torch.where(moved, 0, stalls + 1)
        weights, grad, loss = new, new_grad, torch.where(lower, new_loss, loss)
        past = [(s, g, torch.where(lower, rho, 0)) for s, g, rho in past]  # else forget the past
        solved |= stalls >= MAX_STALLS
        solved |= _dot(grad, grad) <= 2 * tolerance * convexity * loss
    return weights


def _objective(
    weights: Float[Tensor, "s d c"],
    x: Float[Tensor, "n d"],
    y: Int64[Tensor, " n"],
    decay: Float[Tensor, "s d 1"],
) -> tuple[Float[Tensor, "s 1 1"], Float[Tensor, "s d c"]]:
    """Loss and gradient of every problem, computed in blocks of rows."""
    s, d, c = weights.shape
    flat = weights.permute(1, 0, 2).reshape(d, s * c)
    total = weights.new_zeros(s, dtype=torch.float64)
    grad = torch.zeros_like(flat)
    block = max(1, MAX_LOGITS // (s * c))
    for rows, labels in zip(x.split(block), y.split(block), strict=True):
        log_p = (rows @ flat).view(-1, s, c).log_softmax(dim=-1)  # [n, S, C]
        target = labels[:, None, None].expand(-1, s, 1)
        total -= log_p.gather(2, target)[..., 0].double().sum(dim=0)
        error = log_p.exp().scatter_add(2, target, -torch.ones_like(target, dtype=x.dtype))
        grad += rows.T @ error.view(-1, s * c)
    value = total[:, None, None] / len(x) + _dot(decay * weights, weights).double() / 2
    return value, grad.view(d, s, c).permute(1, 0, 2) / len(x) + decay * weights


def _apply_inverse_hessian(
    grad: Float[Tensor, "s d c"],
    past: list[tuple[Tensor, Tensor, Tensor]],
    scale: Float[Tensor, "s 1 1"],
) -> Float[Tensor, "s d c"]:
    """The two-loop recursion of L-BFGS (Nocedal 1980), for every problem at once."""
    alphas = []
    for step, grad_change, rho in reversed(past):
        alpha = rho * _dot(step, grad)
        grad = grad - alpha * grad_change
        alphas.append(alpha)
    grad = scale * grad
    for (step, grad_change, rho), alpha in zip(past, reversed(alphas), strict=True):
        grad = grad + (alpha - rho * _dot(grad_change, grad)) * step
    return grad


def _dot(a: Float[Tensor, "s d c"], b: Float[Tensor, "s d c"]) -> Float[Tensor, "s 1 1"]:
    return (a * b).sum(dim=(1, 2), keepdim=True)


def standardize(
    h: Float[Tensor, "n d"], like: Float[Tensor, "m d"]
) -> Float[Tensor, "n {h.shape[1]+1}"]:
    """Shift and scale columns to mean 0 and std 1 on `like`; append a column of ones."""
    mean, std = column_statistics(like)
    return F.pad((h.nan_to_num(0.0, 0.0, 0.0) - mean) / std, (0, 1), value=1.0)


def column_statistics(
    like: Float[Tensor, "m d"],
) -> tuple[Float[Tensor, " d"], Float[Tensor, " d"]]:
    """Mean and std of each column; the std of a constant one is infinite."""
    like = like.nan_to_num(0.0, 0.0, 0.0)
    std = like.std(dim=0, correction=0)
    # A constant column has only rounding noise, which must not be scaled up to std 1.
    dead = std <= 1e-6 * like.abs().amax(dim=0)
    return like.mean(dim=0), std.masked_fill(dead, torch.inf)


class Selection(NamedTuple):
    """The best of several classifiers on held-out images."""

    number: int
    accuracy: float


def select_best(logits: Float[Tensor, "s n c"], y: Int64[Tensor, " n"]) -> Selection:
    """Select the classifier with the highest accuracy; ties go to the lowest loss."""
    targets = y.expand(len(logits), -1)
    correct = (logits.argmax(dim=2) == targets).double().mean(dim=1)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    loss = loss.view(targets.shape).mean(dim=1).nan_to_num(torch.inf)
    rank = list(zip(correct.tolist(), (-loss).tolist(), strict=True))
    best = max(range(len(rank)), key=rank.__getitem__)
    return Selection(best, rank[best][0])


def hold_out_tenth(y: Int64[Tensor, " n"], *, seed: int) -> Split | None:
    """Hold out a tenth of the training images to select settings; None if no class has two."""
    if int(y.bincount().max()) < 2:
        return None
    split = stratified(y, test_share=0.1, seed=seed)
    return Split(split.train.to(y.device), split.test.to(y.device))


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearProbe:
    """Accuracy of a linear classifier on the features."""

    data: LabeledData
    weight_decays: tuple[float, ...] = WEIGHT_DECAYS
    max_steps: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        check_has_test_images(self.data)
        check_setting("weight_decays", self.weight_decays, tuple[float, ...], NOT_NEGATIVE)
        if not self.weight_decays:
            raise UserError("weight_decays is empty. Give one or more numbers.")

    def __call__(self, backbone: nn.Module) -> Scores:
        """Encode the images with the backbone and return accuracies."""
        return self.score(*self.data.features(backbone))

    def score(self, train: Features, test: Features | None) -> Scores:
        """Accuracy on the test set, and the weight decay selected on the held-out tenth."""
        assert test is not None and train.y is not None and test.y is not None
        x, y = standardize(train.h, train.h), train.y
        decay, start, held_out_accuracy = self._select_weight_decay(x, y)
        weights = self._solve(x, y, (decay,), start)[0]
        predictions = (standardize(test.h, train.h) @ weights).argmax(dim=1)
        numbers = score_predictions(test.y, {"accuracy": predictions}) | {"weight_decay": decay}
        if held_out_accuracy is not None:
            numbers["held_out_accuracy"] = held_out_accuracy
        return numbers

    def settings(self) -> dict[str, Any]:
        """The settings that decided the numbers, for the result file."""
        return {
            "solver": "L-BFGS",
            "standardized": True,
            "weight_decays": list(self.weight_decays),
            "held_out_share": 0.1,
            "max_steps": self.max_steps,
            "seed": self.seed,
        }

    def _select_weight_decay(
        self, x: Tensor, y: Tensor
    ) -> tuple[float, Tensor | None, float | None]:
        """The selected weight decay, weights to start from, and its accuracy on the held-out."""
        split = hold_out_tenth(y, seed=self.seed)
        if split is None or len(self.weight_decays) == 1:
            return self.weight_decays[len(self.weight_decays) // 2], None, None
        weights = self._solve(x[split.train], y[split.train], self.weight_decays)
        logits = torch.einsum("nd,sdc->snc", x[split.test], weights)
        best = select_best(logits, y[split.test])
        decay = self.weight_decays[best.number]
        return decay, weights[best.number : best.number + 1], best.accuracy

    def _solve(
        self, x: Tensor, y: Tensor, decays: tuple[float, ...], start: Tensor | None = None
    ) -> Tensor:
        return logistic_regression(
            x,
            y,
            weight_decays=decays,
            num_classes=self.data.num_classes,
            max_steps=self.max_steps,
            start=start,
            progress="linear probe, at most" if self.data.progress else None,
        )


def check_has_test_images(data: LabeledData) -> None:
    """Raise a UserError if there are no test images."""
    if not data.has_test_images:
        raise UserError(
            "A classifier is scored on images it was not trained on. Give a test set or a split."
        )
