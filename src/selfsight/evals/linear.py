"""Linear probe: multinomial logistic regression on standardized features, solved not tuned.

Features are standardized by the training set (a batch norm without weights), because encoders
differ in scale by orders of magnitude, which is why published protocols have learning rates from
0.1 to 30. The problem is then convex: L-BFGS solves it for several weight decays at once, and a
held-out tenth of the training set, never the test set, chooses among them (as CLIP's probe does,
arXiv:2103.00020, appendix A.3). The winner is solved again on the whole training set.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from selfsight.errors import UserError
from selfsight.evals.features import Features
from selfsight.evals.knn import accuracy
from selfsight.evals.labeled_data import LabeledData
from selfsight.evals.splits import Split, stratified
from selfsight.progress import track

LOGITS = 1 << 26  # held at a time: 256 MiB in float32
MEMORY = 10  # past steps from which L-BFGS guesses the curvature
HALVINGS = 10  # of a step that does not go down, before it is given up


def logistic_regression(
    x: Float[Tensor, "n d"],
    y: Int64[Tensor, " n"],
    *,
    weight_decays: tuple[float, ...],
    num_classes: int,
    max_steps: int = 200,
    tolerance: float = 1e-5,
    start: Float[Tensor, "s d c"] | None = None,
    progress: str | None = None,
) -> Float[Tensor, "s d c"]:
    """Weights with the least mean cross-entropy + decay / 2 * |weights|^2, for each decay.

    The last column of x is taken for the constant one: its weights are the biases, not decayed.
    A problem is solved when none of its slopes is above `tolerance`.
    """
    decay = x.new_tensor(weight_decays)[:, None, None].repeat(1, x.shape[1], 1)
    decay[:, -1] = 0
    weights = x.new_zeros(len(weight_decays), x.shape[1], num_classes) if start is None else start
    loss, grad = _objective(weights, x, y, decay)
    # The curvature is at most half the mean squared length of a row.
    scale = (2 / x.pow(2).sum(dim=1).mean()).expand(len(weights), 1, 1)
    past: list[tuple[Tensor, Tensor, Tensor]] = []
    solved = grad.abs().amax(dim=(1, 2), keepdim=True) <= tolerance
    for _ in track(range(max_steps), progress):
        if bool(solved.all()):
            break
        direction = -_times_inverse_curvature(grad, past, scale).masked_fill(solved, 0)
        slope = _dot(grad, direction)
        length = torch.ones_like(slope)
        for _ in range(HALVINGS):
            new = weights + length * direction
            new_loss, new_grad = _objective(new, x, y, decay)
            lower = new_loss <= loss + 1e-4 * length * slope
            if bool(lower.all()):
                break
            length = torch.where(lower, length, length / 2)
        # A problem that no longer goes down is solved as far as its precision allows.
        new, new_grad = torch.where(lower, new, weights), torch.where(lower, new_grad, grad)
        moved, bent = new - weights, new_grad - grad
        curved = _dot(moved, bent)
        usable = curved > 0
        past = [*past, (moved, bent, torch.where(usable, 1 / curved, 0))][-MEMORY:]
        scale = torch.where(usable, curved / _dot(bent, bent), scale)
        weights, grad, loss = new, new_grad, torch.where(lower, new_loss, loss)
        solved |= ~lower | (grad.abs().amax(dim=(1, 2), keepdim=True) <= tolerance)
    return weights


def _objective(
    weights: Float[Tensor, "s d c"],
    x: Float[Tensor, "n d"],
    y: Int64[Tensor, " n"],
    decay: Float[Tensor, "s d 1"],
) -> tuple[Float[Tensor, "s 1 1"], Float[Tensor, "s d c"]]:
    """Value and gradient of every problem, a block of rows at a time."""
    s, d, c = weights.shape
    flat = weights.permute(1, 0, 2).reshape(d, s * c)
    total = weights.new_zeros(s, dtype=torch.float64)
    grad = torch.zeros_like(flat)
    block = max(1, LOGITS // (s * c))
    for rows, labels in zip(x.split(block), y.split(block), strict=True):
        log_p = (rows @ flat).view(-1, s, c).log_softmax(dim=-1)  # [n, S, C]
        own = labels[:, None, None].expand(-1, s, 1)
        total -= log_p.gather(2, own)[..., 0].double().sum(dim=0)
        error = log_p.exp().scatter_add(2, own, -torch.ones_like(own, dtype=x.dtype))
        grad += rows.T @ error.view(-1, s * c)
    value = total[:, None, None] / len(x) + _dot(decay * weights, weights).double() / 2
    return value, grad.view(d, s, c).permute(1, 0, 2) / len(x) + decay * weights


def _times_inverse_curvature(
    grad: Float[Tensor, "s d c"],
    past: list[tuple[Tensor, Tensor, Tensor]],
    scale: Float[Tensor, "s 1 1"],
) -> Float[Tensor, "s d c"]:
    """The two-loop recursion of L-BFGS (Nocedal 1980), for every problem at once."""
    shares = []
    for moved, bent, inverse in reversed(past):
        share = inverse * _dot(moved, grad)
        grad = grad - share * bent
        shares.append(share)
    grad = scale * grad
    for (moved, bent, inverse), share in zip(past, reversed(shares), strict=True):
        grad = grad + (share - inverse * _dot(bent, grad)) * moved
    return grad


def _dot(a: Float[Tensor, "s d c"], b: Float[Tensor, "s d c"]) -> Float[Tensor, "s 1 1"]:
    return (a * b).sum(dim=(1, 2), keepdim=True)


def standardize(
    h: Float[Tensor, "n d"], like: Float[Tensor, "m d"]
) -> Float[Tensor, "n {h.shape[1]+1}"]:
    """Columns with mean 0 and spread 1 on `like`, and a column of ones for the biases."""
    h, like = h.nan_to_num(0.0, 0.0, 0.0), like.nan_to_num(0.0, 0.0, 0.0)
    spread = like.std(dim=0, correction=0)
    # A dead column holds rounding alone, which must not be blown up to spread 1.
    dead = spread <= 1e-6 * like.abs().amax(dim=0)
    spread = spread.masked_fill(dead, torch.inf)
    return F.pad((h - like.mean(dim=0)) / spread, (0, 1), value=1.0)


class Selection(NamedTuple):
    """Which of several classifiers a held-out set prefers."""

    winner: int
    accuracy: float


def select_best(logits: Float[Tensor, "s n c"], y: Int64[Tensor, " n"]) -> Selection:
    """The better accuracy wins; where a small held-out set cannot tell, the lower loss does."""
    own = y.expand(len(logits), -1)
    right = (logits.argmax(dim=2) == own).double().mean(dim=1)
    loss = F.cross_entropy(logits.flatten(0, 1), own.flatten(), reduction="none")
    loss = loss.view(own.shape).mean(dim=1).nan_to_num(torch.inf)
    rank = list(zip(right.tolist(), (-loss).tolist(), strict=True))
    winner = max(range(len(rank)), key=rank.__getitem__)
    return Selection(winner, rank[winner][0])


def hold_out_tenth(y: Int64[Tensor, " n"], *, seed: int) -> Split | None:
    """A tenth of what is learned from, to choose settings by; None where no class has two."""
    if int(y.bincount().max()) < 2:
        return None
    part = stratified(y, test_share=0.1, seed=seed)
    return Split(part.train.to(y.device), part.test.to(y.device))


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearProbe:
    """Share of images that a linear classifier of the features gets right."""

    data: LabeledData
    weight_decays: tuple[float, ...] = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
    max_steps: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        check_has_test_images(self.data)
        if not self.weight_decays or min(self.weight_decays) < 0:
            raise UserError(
                f"weight_decays is {self.weight_decays}. Give one or more, each 0 or above."
            )

    def __call__(self, backbone: nn.Module) -> dict[str, float]:
        """The evaluator's numbers for a backbone."""
        return self.score(*self.data.features(backbone))

    def score(self, train: Features, test: Features | None) -> dict[str, float]:
        """Accuracy on the test set, and the weight decay that the held-out tenth chose."""
        assert test is not None and train.y is not None and test.y is not None
        x, y = standardize(train.h, train.h), train.y
        decay, start, seen = self._chosen(x, y)
        final = self._solve(x, y, (decay,), start)[0]
        guesses = (standardize(test.h, train.h) @ final).argmax(dim=1)
        found = {"accuracy": accuracy(guesses, test.y), "weight_decay": decay}
        return found if seen is None else found | {"held_out_accuracy": seen}

    def settings(self) -> dict[str, Any]:
        """What decided the number, for the result file."""
        return {
            "solver": "L-BFGS",
            "standardized": True,
            "weight_decays": list(self.weight_decays),
            "held_out_share": 0.1,
            "max_steps": self.max_steps,
            "seed": self.seed,
        }

    def _chosen(self, x: Tensor, y: Tensor) -> tuple[float, Tensor | None, float | None]:
        """The decay, weights to start from, and what the held-out tenth said of it."""
        part = hold_out_tenth(y, seed=self.seed)
        if part is None or len(self.weight_decays) == 1:
            return self.weight_decays[len(self.weight_decays) // 2], None, None
        weights = self._solve(x[part.train], y[part.train], self.weight_decays)
        logits = torch.einsum("nd,sdc->snc", x[part.test], weights)
        choice = select_best(logits, y[part.test])
        decay = self.weight_decays[choice.winner]
        return decay, weights[choice.winner : choice.winner + 1], choice.accuracy

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
    """Refuse labeled images that leave nothing apart to be scored on."""
    if not data.apart:
        raise UserError("A classifier is scored on other images. Give it a test set or a split.")
