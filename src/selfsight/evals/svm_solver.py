"""Linear SVM with squared hinge loss (the problem of liblinear), solved by Newton's method.

The objective is |w|^2 / 2 + sum of c * max(0, 1 - y w.x)^2, which is piecewise quadratic: only the
images within the margin count, and a Newton step solves a linear system of those images (Chapelle
2007, "Training a support vector machine in the primal"). No random numbers are used.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

MAX_CG_STEPS = 20  # beyond, the system is ill-conditioned and has few rows: solve it directly


class Solution(NamedTuple):
    """Weights for one cost, and whether they reached the tolerance."""

    weights: Float[Tensor, " d"]
    converged: bool


def fit_costs(
    x: Float[Tensor, "n d"],
    present: Bool[Tensor, " n"],
    costs: Sequence[float],
    *,
    positive_weight: float = 1.0,
    max_steps: int = 100,
    tolerance: float = 1e-4,
    start: Float[Tensor, " d"] | None = None,
) -> list[Solution]:
    """Fit an SVM for each cost, in rising order, each starting from the one before.

    The objective is strongly convex, so |w - solution| is at most |gradient|; a fit has converged
    when |gradient| is at most `tolerance` * |w|.
    """
    y = torch.where(present, 1.0, -1.0).to(x)
    weight = torch.where(present, positive_weight, 1.0).to(x)
    w = x.new_zeros(x.shape[1]) if start is None else start
    direct = False
    solutions: dict[float, Solution] = {}
    for cost in sorted(set(costs)):
        w, converged, direct = _fit(
            x, y, cost * weight, w, direct=direct, max_steps=max_steps, tolerance=tolerance
        )
        solutions[cost] = Solution(w, converged)
    return [solutions[cost] for cost in costs]


def _fit(
    x: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    c: Float[Tensor, " n"],
    w: Float[Tensor, " d"],
    *,
    direct: bool,
    max_steps: int,
    tolerance: float,
) -> tuple[Float[Tensor, " d"], bool, bool]:
    """Weights, whether they converged, and whether later costs need the direct solver."""
    slack = 1 - y * (x @ w)
    for _ in range(max_steps):
        inside = (slack > 0).nonzero()[:, 0]
        x_in, y_in, c_in = x[inside], y[inside], c[inside]
        grad = w - 2 * (x_in.T @ (c_in * y_in * slack[inside]))
        if bool(grad.norm() <= tolerance * w.norm()):
            return w, True, direct
        change = None if direct else _solve_by_cg(x_in, 2 * c_in, -grad)
        if change is None:
            direct = True
            change = _solve_directly(x_in, y_in, 2 * c_in) - w
        slack_drop = y * (x @ change)
        length = _minimize_on_line(w, change, slack, slack_drop, c)
        w, slack = w + length * change, slack - length * slack_drop
    return w, False, direct


def _solve_by_cg(
    x: Float[Tensor, "m d"], c: Float[Tensor, " m"], b: Float[Tensor, " d"]
) -> Float[Tensor, " d"] | None:
    """Solve (1 + X'CX) v = b to 1 % by conjugate gradients; None if that takes too many steps."""
    v, residual = torch.zeros_like(b), b
    direction, squared = residual, residual @ residual
    target = 1e-4 * squared
    for _ in range(MAX_CG_STEPS):
        product = direction + x.T @ (c * (x @ direction))
        length = squared / (direction @ product)
        v, residual = v + length * direction, residual - length * product
        previous, squared = squared, residual @ residual
        if bool(squared <= target):
            return v
        direction = residual + squared / previous * direction
    return None


def _solve_directly(
    x: Float[Tensor, "m d"], y: Float[Tensor, " m"], c: Float[Tensor, " m"]
) -> Float[Tensor, " d"]:
    """The minimum of |w|^2 / 2 + sum of c (1 - y w.x)^2 / 2, from the smaller of two systems."""
    rows, columns = x.shape
    if rows <= columns:
        system = x @ x.T
        system.diagonal().add_(1 / c)
        return x.T @ _solve(system, y)
    system = x.T @ (c[:, None] * x)
    system.diagonal().add_(1)
    return _solve(system, x.T @ (c * y))


def _solve(a: Float[Tensor, "k k"], b: Float[Tensor, " k"]) -> Float[Tensor, " k"]:
    return torch.cholesky_solve(b[:, None], torch.linalg.cholesky(a))[:, 0]


def _minimize_on_line(
    w: Float[Tensor, " d"],
    change: Float[Tensor, " d"],
    slack: Float[Tensor, " n"],
    slack_drop: Float[Tensor, " n"],
    c: Float[Tensor, " n"],
) -> Float[Tensor, ""]:
    """The exact minimum of the objective at w + t * change, over t.

    Its slope is linear between the values of t where an image leaves or enters the margin.
    """
    inside = slack > 0
    crosses = torch.where(inside, slack_drop > 0, slack_drop < 0)
    ends, order = torch.where(crosses, slack / slack_drop, torch.inf).sort(stable=True)
    order = order[: int(crosses.sum())]
    constant, linear = -2 * c * slack_drop * slack, 2 * c * slack_drop**2
    sign = torch.where(inside, -1.0, 1.0).to(c)[order]
    constants = torch.cat([(w @ change + constant[inside].sum())[None], sign * constant[order]])
    linears = torch.cat([(change @ change + linear[inside].sum())[None], sign * linear[order]])
    constants, linears = constants.cumsum(0), linears.cumsum(0)
    ends = torch.cat([ends[: len(order)], ends.new_tensor([torch.inf])])
    first = int((constants + linears * ends >= 0).byte().argmax())
    return -constants[first] / linears[first]
