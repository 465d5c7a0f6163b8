"""Statistics over many views of each image: similarity, variance, and EqCo's bounds.

Pure functions of embeddings. JCL: Cai et al. 2020 (arXiv:2009.14776), figure 3. EqCo: Zhu et al.
2020 (arXiv:2010.01929), theorems 1 and 2, figures 1 and 4.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


class Gradients(NamedTuple):
    """For each query: norm of the loss's gradient, EqCo's upper bound on it, and the loss."""

    norm: Float[Tensor, " n"]
    bound: Float[Tensor, " n"]
    loss: Float[Tensor, " n"]


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
) -> Gradients:
    """Gradient of InfoNCE with respect to each unit query.

    Query i has key i as its positive and the keys of the next `num_negatives` images (cyclically)
    as negatives. With EqCo's `alpha` they are weighted as that many negatives. The bound follows
    from the triangle inequality: 2 / temperature x (1 - softmax of the positive).
    """
    n = len(q)
    if not 1 <= num_negatives < n:
        raise ValueError(f"num_negatives is {num_negatives}; {n} images have 1 to {n - 1}.")
    dtype = torch.promote_types(q.dtype, torch.float32)
    q, keys = F.normalize(q.to(dtype), dim=1), F.normalize(keys.to(dtype), dim=1)
    row = torch.arange(n, device=q.device)
    distance = (row - row[:, None]) % n  # [N, N]: from query i to key j
    logits = (q @ keys.T / temperature).masked_fill(distance > num_negatives, -math.inf)
    log_weight = math.log((alpha or num_negatives) / num_negatives)  # EqCo: alpha / K per negative
    p = (logits + log_weight * (distance > 0)).softmax(dim=1)
    positive = p.diagonal()
    grad = p @ keys - keys  # times temperature
    return Gradients(
        grad.norm(dim=1) / temperature, 2 / temperature * (1 - positive), -positive.log()
    )


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
