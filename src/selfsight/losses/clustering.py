"""Losses on assignments to prototypes: one view predicts the code (assignment) of another.

N: images on this process, K: prototypes, V: views, A: views that are assigned codes.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from selfsight import dist
from selfsight.losses.float32_losses import at_least_float32, unit

Scores = Float[Tensor, "n k"]
Scalar = Float[Tensor, ""]


@at_least_float32
def prototype_scores(
    z: Float[Tensor, "*rows d"], prototypes: Float[Tensor, "k d"]
) -> Float[Tensor, "*rows k"]:
    """Cosines to the prototypes, which are assumed to be unit vectors."""
    return unit(z) @ prototypes.T


@torch.no_grad()
@at_least_float32
def sinkhorn(
    scores: Scores,
    *,
    epsilon: float = 0.05,
    iterations: int = 3,
    counted: Bool[Tensor, " n"] | None = None,
) -> Scores:
    """Codes: a distribution over prototypes for each row, such that prototypes share rows equally.

    Sinkhorn and Knopp's iteration on exp(scores / epsilon) over the rows of all processes (SwAV,
    equation 5); it ends with rows that sum to 1. Rows that are not `counted` are ignored and
    get zeros, so that a queue can be left out without a change of shape.
    """
    highest = dist.gather(scores.max().view(1)).max()  # any constant cancels; this never overflows
    q = ((scores - highest) / epsilon).exp()  # [N, K]
    if counted is not None:
        q = q * counted[:, None]
    least = torch.finfo(q.dtype).tiny  # avoids 0 / 0 for ignored rows and unreachable prototypes
    q = q / dist.all_sum(q.sum())
    for _ in range(iterations):
        q = q / (dist.all_sum(q.sum(0)).clamp_min(least) * q.shape[1])
        q = q / q.sum(1, keepdim=True).clamp_min(least)
    return q


def codes(scores: Scores, past: Float[Tensor, "q k"], full: Bool[Tensor, ""]) -> Scores:
    """Codes of a batch, assigned together with past embeddings once the queue is full."""
    rows = torch.cat([past.detach(), scores.detach()])
    counted = torch.cat([full.expand(len(past)), torch.ones_like(scores[:, 0], dtype=torch.bool)])
    return sinkhorn(rows, counted=counted)[len(past) :]


@torch.no_grad()
@at_least_float32
def centered_codes(
    logits: Float[Tensor, "a n k"],
    center: Float[Tensor, " k"],
    *,
    temperature: float | Float[Tensor, ""],
) -> Float[Tensor, "a n k"]:
    """Codes of DINO's teacher: a softmax of its logits less their mean over past batches."""
    return ((logits - center) / temperature).softmax(-1)


@at_least_float32
def swapped_prediction(
    scores: Float[Tensor, "v n k"], codes: Float[Tensor, "a n k"], *, temperature: float
) -> Scalar:
    """Each of the first A views' codes is predicted from all other views.

    SwAV, equation 2; DINO, equation 3.
    """
    log_p = (scores / temperature).log_softmax(-1)  # [V, N, K]
    # All pairs of an assigned and a predicting view, less each view with itself: elementwise,
    # because a product of matrices, [A, NK] by [NK, V], has few entries with very long sums.
    every = (codes.sum(0) * log_p.sum(0)).sum()
    own = (codes * log_p[: len(codes)]).sum()
    return (own - every) / (scores.shape[1] * len(codes) * (len(scores) - 1))
