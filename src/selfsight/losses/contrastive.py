"""Contrastive losses: pick the positive among negatives.

N: images on this process, G: on all processes, D: width, K: negatives of a query. A loss is the
mean over this process's queries; the mean over processes is the loss of the global batch. Where
the similarity matrix of all queries and keys would not fit, it is streamed, unless `negatives`
are given.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from selfsight import dist
from selfsight.losses.blockwise_contrastive import is_streamed, mean_contrastive_nll
from selfsight.losses.float32_losses import at_least_float32, unit

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
    each; without them all others are used. `alpha` is EqCo's, see `eqco_margin`.
    """
    keys = dist.gather(unit(k))  # [G, D]
    queries = unit(q).flatten(0, -2)  # [B N, D]
    own = global_rows(k).repeat(len(queries) // len(k))[:, None]
    if negatives is None and is_streamed(len(queries), len(keys)):
        positive = (unit(q) * unit(k)).sum(-1).flatten()
        return nll_against_all_keys(queries, keys, positive, own, temperature, alpha)
    logits = queries / temperature @ keys.T  # [B N, G]
    return nll_from_logits(logits, own, negatives, alpha).mean()


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
    z1, z2, first = unit(z1), unit(z2), global_rows(z1)
    all1, all2 = dist.gather(z1), dist.gather(z2)  # [G, D]
    if cross and negatives is None and is_streamed(2 * len(z1), len(all1)):
        loss12 = info_nce(z1, z2, temperature=temperature, alpha=alpha)
        return (loss12 + info_nce(z2, z1, temperature=temperature, alpha=alpha)) / 2
    if cross:
        logits = torch.cat([z1 / temperature @ all2.T, z2 / temperature @ all1.T])  # [2N, G]
        return nll_from_logits(logits, first.repeat(2)[:, None], negatives, alpha).mean()
    all_keys = torch.cat([all1, all2])  # [2G, D]
    second = first + len(all1)
    partner, anchor = torch.cat([second, first]), torch.cat([first, second])
    excluded = torch.stack([partner, anchor], 1)  # [2N, 2]
    if negatives is None and is_streamed(len(excluded), len(all_keys)):
        positive = (z1 * z2).sum(-1).repeat(2)
        anchors = torch.cat([z1, z2])  # not all_keys, even if equal: see mean_contrastive_nll
        return nll_against_all_keys(anchors, all_keys, positive, excluded, temperature, alpha)
    logits = torch.cat([z1, z2]) / temperature @ all_keys.T  # [2N, 2G]
    return nll_from_logits(logits, excluded, negatives, alpha).mean()


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

    The queue's rows are not normalized again. With M keys for each query the loss is the mean over
    them: the plain multi-key loss that JCL is compared with.
    """
    q = unit(q) / temperature
    positive = (q * unit(k)).sum(-1)  # [*M, N]
    if is_streamed(len(q), len(queue)):
        return mean_contrastive_nll(q, queue, positive - eqco_margin(len(queue), alpha))
    return contrastive_nll(positive, (q @ queue.T).logsumexp(1), len(queue), alpha).mean()


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
    the variance of the similarities, so the D x D covariance is never computed.
    """
    q = unit(q) / temperature
    similarity = (q * unit(keys)).sum(-1)  # [M, N]
    spread = strength / 2 * similarity.var(0, correction=0)  # [N]
    positive = similarity.mean(0) + spread
    if is_streamed(len(q), len(queue)):
        return mean_contrastive_nll(q, queue, positive) + spread.mean()
    return (contrastive_nll(positive, (q @ queue.T).logsumexp(1), len(queue)) + spread).mean()


def contrastive_nll(
    positive: Float[Tensor, "*m n"],
    negatives: Float[Tensor, " n"],
    num_negatives: int,
    alpha: float | None = None,
) -> Float[Tensor, "*m n"]:
    """-log softmax of the positive, from its logit and the logsumexp of the negatives."""
    return -F.logsigmoid(positive - eqco_margin(num_negatives, alpha) - negatives)


def eqco_margin(num_negatives: int, alpha: float | None) -> float:
    """EqCo's margin (equation 5), subtracted from the positive's logit: log(alpha / K).

    K negatives then count as alpha would; alpha = K subtracts log 1 = 0 and changes no bit.
    """
    return 0.0 if alpha is None else math.log(alpha / num_negatives)


def nll_against_all_keys(
    q: Rows,
    keys: Float[Tensor, "g d"],
    positive: Float[Tensor, " n"],
    excluded: Int64[Tensor, "n t"],
    temperature: float,
    alpha: float | None,
) -> Scalar:
    """Mean NLL of the positive against all keys but the excluded, without their matrix."""
    positive = positive / temperature - eqco_margin(len(keys) - excluded.shape[1], alpha)
    return mean_contrastive_nll(q, keys, positive, excluded, scale=1 / temperature)


def nll_from_logits(
    logits: Float[Tensor, "n c"],
    excluded: Int64[Tensor, "n t"],
    negatives: Positions | None,
    alpha: float | None,
) -> Float[Tensor, " n"]:
    """NLL of column excluded[:, 0] against the columns that are not excluded, or some of them."""
    positive = logits.gather(1, excluded[:, :1])[:, 0]
    if negatives is None:
        others = logits.scatter(1, excluded, -math.inf)
        num_negatives = logits.shape[1] - excluded.shape[1]
    else:
        columns = negatives.expand(len(logits), -1)
        for column in excluded.sort(1).values.T:  # in rising order, so that each is skipped once
            columns = columns + (columns >= column[:, None])
        others = logits.gather(1, columns)  # [N, K]
        num_negatives = columns.shape[1]
    return contrastive_nll(positive, others.logsumexp(1), num_negatives, alpha)


def global_rows(x: Rows) -> Int64[Tensor, " n"]:
    """Positions of this process's rows among the rows of all processes."""
    return dist.rank() * len(x) + torch.arange(len(x), device=x.device)
