"""Statistics over many views of each image: similarity, variance, and EqCo's bounds.

Pure functions of embeddings. JCL: Cai et al. 2020 (arXiv:2009.14776), figure 3. EqCo: Zhu et al.
2020 (arXiv:2010.01929), theorems 1 and 2, figures 1 and 4. Pairs are computed in blocks.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from selfsight.evals.feature_statistics import enumerate_blocks


class Gradients(NamedTuple):
    """For each query: norm of the loss's gradient, EqCo's upper bounds on it, and the loss.

    `bound` holds for the negatives that the query has; `expected_bound` for the mean of the norm
    over samples of negatives (theorem 2, equation 7).
    """

    norm: Float[Tensor, " n"]
    bound: Float[Tensor, " n"]
    expected_bound: Float[Tensor, " n"]
    loss: Float[Tensor, " n"]


class ViewRows(NamedTuple):
    """What the analysis needs of the views of each image: a row for each, `mean` in float64."""

    first: Float[Tensor, "n d"]
    second: Float[Tensor, "n d"]
    mean: Float[Tensor, "n d"]
    similarity: Float[Tensor, " n"]
    variance: Float[Tensor, " n"]


def view_rows(views: Float[Tensor, "n m d"]) -> ViewRows:
    """Reduce the views of each image; the rows do not hold on to the views."""
    mean = views.mean(dim=1, dtype=torch.float64)
    first, second = views[:, 0].clone(), views[:, 1].clone()
    return ViewRows(first, second, mean, *similarity_and_variance(views))


def view_scatter(views: Float[Tensor, "n m d"]) -> Float[Tensor, "d d"]:
    """Sum over images and views of the outer products of deviations from the image's mean.

    Sums of several batches add up; divided by n x (m - 1) it is the covariance within images.
    """
    views = views.double()
    deviation = (views - views.mean(dim=1, keepdim=True)).flatten(0, 1)
    return deviation.T @ deviation


def similarity_and_variance(
    views: Float[Tensor, "n m d"],
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """JCL's similarity and variance of each image, from unit embeddings of m views.

    The mean cosine of all m x m pairs, a view with itself included, and the mean over channels of
    the variance over views (divided by m). An image's mean embedding mu has |mu|^2 = similarity,
    and its variances sum to 1 - |mu|^2: similarity + d * variance = 1.
    """
    z = F.normalize(views.to(torch.promote_types(views.dtype, torch.float32)), dim=2)
    return z.mean(dim=1).pow(2).sum(dim=1), z.var(dim=1, correction=0).mean(dim=1)


def query_gradients(
    q: Float[Tensor, "n d"],
    keys: Float[Tensor, "n d"],
    *,
    num_negatives: int,
    temperature: float,
    alpha: float | None = None,
    queue: Float[Tensor, "k d"] | None = None,
) -> Gradients:
    """Gradient of InfoNCE with respect to each unit query, in blocks of queries.

    Query i has key i as its positive. Its negatives are the first `num_negatives` keys of the
    queue, or without a queue the keys of the next images, cyclically. With EqCo's `alpha` they are
    weighted as that many negatives. The bound follows from the triangle inequality: 2 / temperature
    x (1 - softmax of the positive). The expected bound has the mean over the whole queue, or over
    the keys of all other images.
    """
    n, available = len(q), len(q) - 1 if queue is None else len(queue)
    if not 1 <= num_negatives <= available:
        owner = f"{n} images have" if queue is None else "the queue has"
        raise ValueError(f"num_negatives is {num_negatives}; {owner} 1 to {available}.")
    dtype = torch.promote_types(q.dtype, torch.float32)
    q, keys = F.normalize(q.to(dtype), dim=1), F.normalize(keys.to(dtype), dim=1)
    pool = keys if queue is None else F.normalize(queue.to(dtype), dim=1)
    column = torch.arange(len(pool), device=q.device)
    log_alpha = math.log(alpha or num_negatives)
    blocks = []
    for first, rows in enumerate_blocks(q, width=len(pool)):
        positive = keys[first : first + len(rows)]
        logits = rows @ pool.T / temperature  # [B, N] or [B, K]
        # Negatives of query i are the columns i + 1, i + 2, ..., or 0, 1, ... of a queue.
        order = column.expand_as(logits)
        if queue is None:
            row = torch.arange(first, first + len(rows), device=q.device)
            order = (column - row[:, None] - 1) % n
        s0 = (rows * positive).sum(dim=1) / temperature
        used = logits.masked_fill(order >= num_negatives, -math.inf)
        weight = log_alpha - math.log(num_negatives)  # EqCo: alpha / K per negative
        weighted = torch.cat([s0[:, None], used + weight], dim=1)
        p = weighted.softmax(dim=1)
        grad = (p[:, :1] - 1) * positive + p[:, 1:] @ pool  # times temperature
        others = logits.masked_fill(order >= available, -math.inf).logsumexp(dim=1)
        expected = others - math.log(available)  # log of the mean over all negatives
        blocks.append(
            (
                grad.norm(dim=1) / temperature,
                2 / temperature * (1 - p[:, 0]),
                2 / temperature * (log_alpha + expected - s0).sigmoid(),
                weighted.logsumexp(dim=1) - s0,
            )
        )
    return Gradients(*(torch.cat(column) for column in zip(*blocks, strict=True)))


def information_bound(loss: float, *, num_negatives: int, alpha: float | None = None) -> float:
    """EqCo's empirical lower bound on the mutual information of a positive pair, in nats.

    log(1 + K e^(m / temperature)) - InfoNCE, which is log(1 + alpha) - InfoNCE with EqCo's margin.
    """
    return math.log1p(alpha or num_negatives) - loss


def histogram(
    values: Float[Tensor, " n"], *, low: float, high: float, bins: int = 50
) -> dict[str, Any]:
    """Counts in bins of equal width, for JSON; values outside count in the first or last bin."""
    values = values.detach().double().clamp(low, high)
    counts, edges = np.histogram(values.cpu().numpy(), bins, (low, high))
    return {"edges": edges.tolist(), "counts": counts.tolist(), "mean": values.mean().item()}
