"""Contrastive losses: pick the positive among negatives.

N: images on this process, G: on all processes, D: width, K: negatives of a query. A loss is the
mean over this process's queries; the mean over processes is the loss of the global batch. Where
the similarities of all queries and keys would not fit, they are streamed, unless some negatives
are chosen.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from selfsight import dist
from selfsight.losses.dtype import at_least_float32, unit
from selfsight.losses.streaming import mean_surprise, streams

Rows = Float[Tensor, "n d"]
Scalar = Float[Tensor, ""]
Positions = Int64[Tensor, " k"] | Int64[Tensor, "q k"]


@at_least_float32
def info_nce(
    q: Float[Tensor, "*blocks n d"],
    k: Rows,
    *,
    temperature: float,
    negatives: Positions | None = None,
    alpha: float | None = None,
) -> Scalar:
    """Pick each query's own key among the keys of all processes (MoCo v3, SiMo).

    `q` may hold several blocks of queries to the same keys (Fast-MoCo): the mean is over them all.
    `negatives` are positions among the G - 1 other keys, the same for all queries or a row for
    each; without them all others are used. `alpha` is EqCo's, see `margin`.
    """
    keys = dist.gather(unit(k))  # [G, D]
    queries = unit(q).flatten(0, -2)  # [B N, D]
    own = numbers(k).repeat(len(queries) // len(k))[:, None]
    if negatives is None and streams(len(queries), len(keys)):
        positive = (unit(q) * unit(k)).sum(-1).flatten()
        return among_all(queries, keys, positive, own, temperature, alpha)
    logits = queries / temperature @ keys.T  # [B N, G]
    return among_others(logits, own, negatives, alpha).mean()


def neighbor_info_nce(
    targets: Rows, p: Float[Tensor, "*blocks n d"], *, temperature: float
) -> Scalar:
    """Each target picks its own prediction among those of all processes (NNCLR, equation 2).

    `p` may hold several blocks of predictions: the mean is over blocks, each a choice of its own.
    """
    blocks = p.reshape(-1, *targets.shape)
    return torch.stack([info_nce(targets, b, temperature=temperature) for b in blocks]).mean()


@at_least_float32
def nt_xent(
    z1: Rows,
    z2: Rows,
    *,
    temperature: float,
    negatives: Positions | None = None,
    alpha: float | None = None,
    cross: bool = False,
) -> Scalar:
    """Each of the 2N embeddings picks its partner among the other 2G - 1 (SimCLR, equation 1).

    The mean is over the 2N anchors, as in the paper; the released code gives twice that.
    `negatives` are positions among the 2G - 2 that are neither the anchor nor its partner; with
    `cross` among the G - 1 of them that are of the partner's view.
    """
    z1, z2, first = unit(z1), unit(z2), numbers(z1)
    every1, every2 = dist.gather(z1), dist.gather(z2)  # [G, D]
    if cross and negatives is None and streams(2 * len(z1), len(every1)):
        there = info_nce(z1, z2, temperature=temperature, alpha=alpha)
        return (there + info_nce(z2, z1, temperature=temperature, alpha=alpha)) / 2
    if cross:
        logits = torch.cat([z1 / temperature @ every2.T, z2 / temperature @ every1.T])  # [2N, G]
        return among_others(logits, first.repeat(2)[:, None], negatives, alpha).mean()
    everyone = torch.cat([every1, every2])  # [2G, D]
    second = first + len(every1)
    partner, anchor = torch.cat([second, first]), torch.cat([first, second])
    taken = torch.stack([partner, anchor], 1)  # [2N, 2]
    if negatives is None and streams(len(taken), len(everyone)):
        positive = (z1 * z2).sum(-1).repeat(2)
        anchors = everyone if dist.world_size() == 1 else torch.cat([z1, z2])
        return among_all(anchors, everyone, positive, taken, temperature, alpha)
    logits = torch.cat([z1, z2]) / temperature @ everyone.T  # [2N, 2G]
    return among_others(logits, taken, negatives, alpha).mean()


@at_least_float32
def queue_info_nce(
    q: Rows,
    k: Float[Tensor, "*keys n d"],
    queue: Float[Tensor, "k d"],
    *,
    temperature: float,
    alpha: float | None = None,
) -> Scalar:
    """Pick each query's own key against a queue of past keys (MoCo, equation 1).

    The queue's rows are taken as they are. With M keys for each query the loss is the mean over
    them: the plain multi-key loss that JCL is compared with.
    """
    q = unit(q) / temperature
    positive = (q * unit(k)).sum(-1)  # [*M, N]
    if streams(len(q), len(queue)):
        return mean_surprise(q, queue, positive - margin(len(queue), alpha))
    return surprise(positive, (q @ queue.T).logsumexp(1), len(queue), alpha).mean()


@at_least_float32
def jcl(
    q: Rows,
    keys: Float[Tensor, "m n d"],
    queue: Float[Tensor, "k d"],
    *,
    temperature: float,
    strength: float | Float[Tensor, ""],
) -> Scalar:
    """The bound on the loss over infinitely many keys of one image (JCL, equation S.3).

    It needs q'mu and q'Sigma q for the mean and covariance of the keys: these are the mean and
    the variance of the similarities, so the D x D covariance is never made.
    """
    q = unit(q) / temperature
    similarity = (q * unit(keys)).sum(-1)  # [M, N]
    spread = strength / 2 * similarity.var(0, correction=0)  # [N]
    positive = similarity.mean(0) + spread
    if streams(len(q), len(queue)):
        return mean_surprise(q, queue, positive) + spread.mean()
    return (surprise(positive, (q @ queue.T).logsumexp(1), len(queue)) + spread).mean()


def surprise(
    positive: Float[Tensor, "*m n"],
    negatives: Float[Tensor, " n"],
    num_negatives: int,
    alpha: float | None = None,
) -> Float[Tensor, "*m n"]:
    """-log of the positive's share, from its logit and the negatives' logsumexp."""
    return -F.logsigmoid(positive - margin(num_negatives, alpha) - negatives)


def margin(num_negatives: int, alpha: float | None) -> float:
    """By how much EqCo (equation 5) lowers the positive's logit: log(alpha / K).

    K negatives then weigh as alpha would; alpha = K takes away log 1 = 0 and changes no bit.
    """
    return 0.0 if alpha is None else math.log(alpha / num_negatives)


def among_all(
    q: Rows,
    keys: Float[Tensor, "g d"],
    positive: Float[Tensor, " n"],
    taken: Int64[Tensor, "n t"],
    temperature: float,
    alpha: float | None,
) -> Scalar:
    """The mean surprise at the positive against all keys not taken, without their matrix."""
    lowered = positive / temperature - margin(len(keys) - taken.shape[1], alpha)
    return mean_surprise(q, keys, lowered, taken, scale=1 / temperature)


def among_others(
    logits: Float[Tensor, "n c"],
    taken: Int64[Tensor, "n t"],
    negatives: Positions | None,
    alpha: float | None,
) -> Float[Tensor, " n"]:
    """The surprise at column taken[:, 0] against the columns not taken, or some of those."""
    positive = logits.gather(1, taken[:, :1])[:, 0]
    if negatives is None:
        others = logits.scatter(1, taken, -math.inf)
        num_negatives = logits.shape[1] - taken.shape[1]
    else:
        columns = negatives.expand(len(logits), -1)
        for column in taken.sort(1).values.T:  # in rising order, so that each is stepped over once
            columns = columns + (columns >= column[:, None])
        others = logits.gather(1, columns)  # [N, K]
        num_negatives = columns.shape[1]
    return surprise(positive, others.logsumexp(1), num_negatives, alpha)


def numbers(x: Rows) -> Int64[Tensor, " n"]:
    """Where this process's rows stand among the rows of all processes."""
    return dist.rank() * len(x) + torch.arange(len(x), device=x.device)
