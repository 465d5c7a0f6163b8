"""Linear probe: multinomial logistic regression on standardised features, solved not tuned.

Features are standardised by the training set (a batch norm without weights), because encoders
differ in scale by orders of magnitude, which is why published protocols have learning rates from
0.1 to 30. The problem is then convex: L-BFGS solves it for several weight decays at once, and a
held-out tenth of the training set, never the test set, chooses among them (as CLIP's probe does,
arXiv:2103.00020, appendix A.3). The winner is solved again on the whole training set.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from sightline.errors import UserError
from sightline.evals.features import Features, Labelled
from sightline.evals.knn import accuracy
from sightline.evals.splits import stratified

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
    for _ in range(max_steps):
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


def standardised(
    h: Float[Tensor, "n d"], like: Float[Tensor, "m d"]
) -> Float[Tensor, "n {h.shape[1]+1}"]:
    """Columns with mean 0 and spread 1 on `like`, and a column of ones for the biases."""
    h, like = h.nan_to_num(0.0, 0.0, 0.0), like.nan_to_num(0.0, 0.0, 0.0)
    spread = like.std(dim=0, correction=0)
    # A dead column holds rounding alone, which must not be blown up to spread 1.
    dead = spread <= 1e-6 * like.abs().amax(dim=0)
    spread = spread.masked_fill(dead, torch.inf)
    return F.pad((h - like.mean(dim=0)) / spread, (0, 1), value=1.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Linear(Labelled):
    """Share of pictures that a linear classifier of the features gets right."""

    weight_decays: tuple[float, ...] = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
    max_steps: int = 200
    seed: int = 0

    def __call__(self, backbone: nn.Module) -> dict[str, float]:
        """The evaluator's numbers for a backbone."""
        return self.score(*self.features(backbone))

    def score(self, train: Features, test: Features | None) -> dict[str, float]:
        """Accuracy on the test set, and the weight decay that the held-out tenth chose."""
        if test is None:
            raise UserError("A linear probe is scored on other pictures. Give it a test set.")
        assert train.y is not None and test.y is not None
        x, y = standardised(train.h, train.h), train.y
        part = stratified(y, test_share=0.1, seed=self.seed)
        fitted, held_out = part.train.to(x.device), part.test.to(x.device)
        weights = self._solve(x[fitted], y[fitted], self.weight_decays)
        logits = torch.einsum("nd,sdc->snc", x[held_out], weights)
        own = y[held_out].expand(len(weights), -1)
        right = (logits.argmax(dim=2) == own).double().mean(dim=1)
        loss = F.cross_entropy(logits.flatten(0, 1), own.flatten(), reduction="none")
        # The better accuracy wins; where a small held-out set cannot tell, the lower loss does.
        rank = list(zip(right.tolist(), (-loss.view(own.shape).mean(dim=1)).tolist(), strict=True))
        winner = max(range(len(rank)), key=rank.__getitem__)
        decay = self.weight_decays[winner]
        final = self._solve(x, y, (decay,), weights[winner : winner + 1])[0]
        guesses = (standardised(test.h, train.h) @ final).argmax(dim=1)
        return {
            "accuracy": accuracy(guesses, test.y),
            "held_out_accuracy": rank[winner][0],
            "weight_decay": decay,
        }

    def settings(self) -> dict[str, Any]:
        """What decided the number, for the result file."""
        return {
            "solver": "L-BFGS",
            "standardised": True,
            "weight_decays": list(self.weight_decays),
            "held_out_share": 0.1,
            "max_steps": self.max_steps,
            "seed": self.seed,
        }

    def _solve(
        self, x: Tensor, y: Tensor, decays: tuple[float, ...], start: Tensor | None = None
    ) -> Tensor:
        return logistic_regression(
            x,
            y,
            weight_decays=decays,
            num_classes=self.num_classes,
            max_steps=self.max_steps,
            start=start,
        )
