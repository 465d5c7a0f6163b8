"""Large float32 products on the bf16 units of a GPU, as precise as in float32.

A float32 number is the sum of three bf16 numbers, each with 8 bits of its 24. Of the nine products
of such pieces six are above float32's rounding. They are one bf16 product with six times the inner
dimension, which adds in float32: still several times as fast as float32 on an H200.
"""

from typing import Any

import torch
from jaxtyping import BFloat16, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

MIN_PRODUCTS = 2**29  # multiplications from which on splitting pays
# The pieces that are multiplied, the smallest products first, so that they are not rounded away.
LEFT, RIGHT = (2, 1, 0, 1, 0, 0), (0, 1, 2, 0, 1, 0)


def matrix_product(a: Float[Tensor, "n k"], b: Float[Tensor, "k m"]) -> Float[Tensor, "n m"]:
    """`a @ b`; if it is large, of float32 and on a GPU, by bf16 products of its pieces."""
    large = a.shape[0] * a.shape[1] * b.shape[1] >= MIN_PRODUCTS
    if large and a.device.type == "cuda" and a.dtype == b.dtype == torch.float32:
        product: Tensor = _SplitProduct.apply(a, b)
        return product
    return a @ b


class _SplitProduct(torch.autograd.Function):
    """The product, and the products of its gradients in the same way."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return multiply_pieces(a, b)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a, b = ctx.saved_tensors
        grad_a = multiply_pieces(grad, b.T) if ctx.needs_input_grad[0] else None
        return grad_a, multiply_pieces(a.T, grad) if ctx.needs_input_grad[1] else None


def multiply_pieces(a: Float[Tensor, "n k"], b: Float[Tensor, "k m"]) -> Float[Tensor, "n m"]:
    """Multiply two float32 matrices by one product of their bf16 pieces, on a GPU."""
    wide, tall = join_pieces(a, b)
    return torch.bmm(wide[None], tall[None], out_dtype=torch.float32)[0]


def join_pieces(
    a: Float[Tensor, "n k"], b: Float[Tensor, "k m"]
) -> tuple[BFloat16[Tensor, "n l"], BFloat16[Tensor, "l m"]]:
    """Two bf16 matrices with the product of a and b: the pieces side by side, L = 6K."""
    left, right = split(a), split(b)
    return torch.cat([left[i] for i in LEFT], 1), torch.cat([right[i] for i in RIGHT], 0)


def split(x: Float[Tensor, "n k"]) -> list[Tensor]:
    """Three bf16 matrices whose sum is x, each the rounding of what the larger ones leave."""
    pieces = list[Tensor]()
    for _ in range(3):
        pieces.append(x.to(torch.bfloat16))
        x = x - pieces[-1].float()
    return pieces
