"""The contrastive loss of a similarity matrix that is never held whole.

All our contrastive losses are a mean over queries, so what comes back from above is one number,
and the gradient can be made in the pass that makes the loss: a block of queries meets all keys,
and before its similarities are overwritten by the next block's they have given their logsumexp,
their share of each key (the query's gradient) and what they add to the keys' gradient. That is
three matrix products, as many as the dense loss needs, with nothing computed twice; accumulating
online as flash attention does (Dao et al. 2022, arXiv:2205.14135) would need a fourth.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor
from torch.autograd.function import once_differentiable

# Similarities of a block: 256 MiB in float32, which with embeddings and gradients of 65,536
# images in 256 dimensions stays under 1 GiB.
MOST = 2**26
# A matrix of so many blocks is held whole: when compiled that is faster up to 16,384 x 16,384 (5.8
# against 6.6 ms on one H200) and no more from 32,768 x 32,768 on (22.6 against 22.8 ms).
HELD = 4


def streams(num_queries: int, num_keys: int) -> bool:
    """Whether the matrix is too large to be held."""
    return num_queries * num_keys > HELD * MOST


def mean_surprise(
    q: Float[Tensor, "n d"],
    keys: Float[Tensor, "k d"],
    positive: Float[Tensor, "*m n"],
    taken: Int64[Tensor, "n t"] | None = None,
    *,
    scale: float = 1.0,
) -> Float[Tensor, ""]:
    """The mean of -log sigmoid(positive - logsumexp of scale * q @ keys.T over keys not taken).

    The gradient itself cannot be differentiated again: torch raises.
    """
    learns = torch.is_grad_enabled()
    own = q.new_empty(len(q), 0, dtype=torch.long) if taken is None else taken
    wanted = learns and q.requires_grad, learns and keys.requires_grad
    return _MeanSurprise.apply(q, keys, positive.reshape(-1, len(q)), own, scale, *wanted)


class _MeanSurprise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        keys: Tensor,
        positive: Tensor,
        taken: Tensor,
        scale: float,
        of_q: bool,
        of_keys: bool,
    ) -> Tensor:
        rows = max(1, MOST // len(keys))
        loss, *slopes = operator(q, keys, positive, taken, scale, rows, of_q, of_keys)
        ctx.save_for_backward(*slopes)
        ctx.wanted = of_q, of_keys, ctx.needs_input_grad[2]
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        slopes = zip(ctx.saved_tensors, ctx.wanted, strict=True)
        return *(grad * slope if wanted else None for slope, wanted in slopes), *[None] * 4


def with_slopes(
    q: Tensor,
    keys: Tensor,
    positive: Tensor,
    taken: Tensor,
    scale: float,
    rows: int,
    of_q: bool,
    of_keys: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The loss and its slopes in q, keys and positive [M, N]; those not asked for are empty."""
    gap = torch.empty_like(positive)
    from_q = torch.empty_like(q if of_q else q[:0])
    from_keys = torch.zeros_like(keys if of_keys else keys[:0])
    held = q.new_empty(min(rows, len(q)), len(keys))
    for first in range(0, len(q), rows):
        at = slice(first, first + rows)
        block = q[at] * scale
        logits = torch.mm(block, keys.T, out=held[: len(block)])  # [R, K]
        if taken.shape[1]:
            logits.scatter_(1, taken[at], -torch.inf)
        top = logits.amax(1, keepdim=True)
        share = logits.sub_(top).exp_()  # of the block's sum, in the place of the logits
        total = share.sum(1, keepdim=True)
        gap[:, at] = (total.log() + top).T - positive[:, at]
        weight = scale * gap[:, at].sigmoid().sum(0)[:, None] / (gap.numel() * total)  # [R, 1]
        if of_q:
            torch.mul(share @ keys, weight, out=from_q[at])
        if of_keys:
            from_keys.addmm_(share.T, q[at] * weight)
    return -F.logsigmoid(-gap).mean(), from_q, from_keys, -gap.sigmoid() / gap.numel()


# To the compiler the loop is one node, however many blocks it has.
operator = torch.library.custom_op("selfsight::mean_surprise", with_slopes, mutates_args=())


@operator.register_fake
def _(
    q: Tensor,
    keys: Tensor,
    positive: Tensor,
    taken: Tensor,
    scale: float,
    rows: int,
    of_q: bool,
    of_keys: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from_q = torch.empty_like(q if of_q else q[:0])
    from_keys = torch.empty_like(keys if of_keys else keys[:0])
    return q.new_empty(()), from_q, from_keys, torch.empty_like(positive)
