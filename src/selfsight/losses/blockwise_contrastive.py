"""The contrastive loss without the whole similarity matrix in memory.

All our contrastive losses are a mean over queries, so the gradient that arrives from above is one
number, and the gradients of queries and keys can be computed in the forward pass: for one block of
queries at a time, compute the logits to all keys, their logsumexp, the gradient of the queries and
the block's part of the gradient of the keys. That takes three matrix products, as many as the
dense loss; accumulating online as flash attention does (Dao et al. 2022, arXiv:2205.14135) would
need a fourth.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor
from torch.autograd.function import once_differentiable

# Logits of a block: 256 MiB in float32, which with embeddings and gradients of 65,536
# images in 256 dimensions stays under 1 GiB.
BLOCK_SIZE = 2**26
# A matrix of this many blocks is not streamed: compiled, that is faster up to 16,384 x 16,384 (5.8
# against 6.6 ms on one H200) and no more from 32,768 x 32,768 on (22.6 against 22.8 ms).
MAX_BLOCKS = 4


def is_streamed(num_queries: int, num_keys: int) -> bool:
    """Whether the matrix is too large to be held in memory."""
    return num_queries * num_keys > MAX_BLOCKS * BLOCK_SIZE


def mean_contrastive_nll(
    q: Float[Tensor, "n d"],
    keys: Float[Tensor, "k d"],
    positive: Float[Tensor, "*m n"],
    excluded: Int64[Tensor, "n t"] | None = None,
    *,
    scale: float = 1.0,
) -> Float[Tensor, ""]:
    """The mean of -log sigmoid(positive - logsumexp of scale * q @ keys.T over keys not excluded).

    The gradient itself cannot be differentiated again: torch raises. `q` and `keys` must not be the
    same tensor: compiled, torch would lose one of its two gradients (pytorch/pytorch#181146).
    """
    assert q is not keys
    grad_enabled = torch.is_grad_enabled()
    if excluded is None:
        excluded = q.new_empty(len(q), 0, dtype=torch.long)
    needed = grad_enabled and q.requires_grad, grad_enabled and keys.requires_grad
    positive = positive.reshape(-1, len(q))
    return _MeanContrastiveNLL.apply(q, keys, positive, excluded, scale, *needed)


class _MeanContrastiveNLL(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        keys: Tensor,
        positive: Tensor,
        excluded: Tensor,
        scale: float,
        needs_q: bool,
        needs_keys: bool,
    ) -> Tensor:
        rows = max(1, BLOCK_SIZE // len(keys))
        loss, *grads = operator(q, keys, positive, excluded, scale, rows, needs_q, needs_keys)
        ctx.save_for_backward(*grads)
        ctx.needed = needs_q, needs_keys, ctx.needs_input_grad[2]
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        grads = zip(ctx.saved_tensors, ctx.needed, strict=True)
        return *(grad_output * grad if needed else None for grad, needed in grads), *[None] * 4


def nll_and_grads(
    q: Tensor,
    keys: Tensor,
    positive: Tensor,
    excluded: Tensor,
    scale: float,
    rows: int,
    needs_q: bool,
    needs_keys: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The loss and its gradients for q, keys and positive [M, N]; empty if not needed."""
    gap = torch.empty_like(positive)
    grad_q = torch.empty_like(q if needs_q else q[:0])
    grad_keys = torch.zeros_like(keys if needs_keys else keys[:0])
    buffer = q.new_empty(min(rows, len(q)), len(keys))
    for first in range(0, len(q), rows):
        at = slice(first, first + rows)
        block = q[at] * scale
        logits = torch.mm(block, keys.T, out=buffer[: len(block)])  # [R, K]
        if excluded.shape[1]:
            logits.scatter_(1, excluded[at], -torch.inf)
        top = logits.amax(1, keepdim=True)
        share = logits.sub_(top).exp_()  # softmax before its division, in place of the logits
        total = share.sum(1, keepdim=True)
        gap[:, at] = (total.log() + top).T - positive[:, at]
        weight = scale * gap[:, at].sigmoid().sum(0)[:, None] / (gap.numel() * total)  # [R, 1]
        if needs_q:
            torch.mul(share @ keys, weight, out=grad_q[at])
        if needs_keys:
            grad_keys.addmm_(share.T, q[at] * weight)
    return -F.logsigmoid(-gap).mean(), grad_q, grad_keys, -gap.sigmoid() / gap.numel()


# The compiler sees the loop as one node, for any number of blocks.
operator = torch.library.custom_op(
    "selfsight::mean_contrastive_nll", nll_and_grads, mutates_args=()
)


@operator.register_fake
def _(
    q: Tensor,
    keys: Tensor,
    positive: Tensor,
    excluded: Tensor,
    scale: float,
    rows: int,
    needs_q: bool,
    needs_keys: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    grad_q = torch.empty_like(q if needs_q else q[:0])
    grad_keys = torch.empty_like(keys if needs_keys else keys[:0])
    return q.new_empty(()), grad_q, grad_keys, torch.empty_like(positive)
