"""What many views of each image say: their similarity and variance, and EqCo's bounds.

Pure functions of embeddings. JCL: Cai et al. 2020 (arXiv:2009.14776), figure 3. EqCo: Zhu et al.
2020 (arXiv:2010.01929), theorems 1 and 2, figures 1 and 4.
"""

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


class Gradients(NamedTuple):
    """Of each query: the length of the loss's gradient, EqCo's upper bound on it, the loss."""

    norm: Float[Tensor, " n"]
    bound: Float[Tensor, " n"]
    loss: Float[Tensor, " n"]


def similarity_and_variance(
    views: Float[Tensor, "n m d"],
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """JCL's two numbers of each image, from unit embeddings of m views of it.

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
    """InfoNCE's gradient with respect to each unit query, taken as free to move.

    Query i has key i as its positive and the keys of the `num_negatives` images after it, round
    the end, as negatives. `alpha` is EqCo's: that many negatives is what they stand for. The bound
    is the triangle inequality's, 2 / temperature x (1 - the positive's share).
    """
    n = len(q)
    if not 1 <= num_negatives < n:
        raise ValueError(f"num_negatives is {num_negatives}; {n} images give 1 to {n - 1}.")
    rise = torch.promote_types(q.dtype, torch.float32)
    q, keys = F.normalize(q.to(rise), dim=1), F.normalize(keys.to(rise), dim=1)
    ahead = torch.arange(n, device=q.device)
    ahead = (ahead - ahead[:, None]) % n  # [N, N]: how far key j is after query i
    logits = (q @ keys.T / temperature).masked_fill(ahead > num_negatives, -math.inf)
    weight = math.log((alpha or num_negatives) / num_negatives)  # EqCo: alpha / K on each negative
    share = (logits + weight * (ahead > 0)).softmax(dim=1)
    positive = share.diagonal()
    pull = share @ keys - keys  # the positive pulls by its share - 1
    return Gradients(
        pull.norm(dim=1) / temperature, 2 / temperature * (1 - positive), -positive.log()
    )


def information_bound(loss: float, *, num_negatives: int, alpha: float | None = None) -> float:
    """EqCo's empirical lower bound on the mutual information of a positive pair, in nats.

    log(1 + K e^(m / temperature)) - InfoNCE, which is log(1 + alpha) - InfoNCE under its rule.
    """
    return math.log1p(alpha or num_negatives) - loss


def histogram(
    values: Float[Tensor, " n"], *, low: float, high: float, bins: int = 50
) -> dict[str, Any]:
    """Counts between equal edges, ready for JSON; what lies outside is in the first or last bin."""
    values = values.detach().double().clamp(low, high)
    width = (high - low) / bins or 1.0
    at = ((values - low) / width).long().clamp(max=bins - 1)
    counts = torch.bincount(at, minlength=bins)
    edges = [low + i * width for i in range(bins + 1)]
    return {"edges": edges, "counts": counts.tolist(), "mean": values.mean().item()}
