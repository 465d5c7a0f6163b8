"""Losses on the statistics of the global batch: their sums run over all processes."""

import torch
from jaxtyping import Float
from torch import Tensor

from selfsight import dist
from selfsight.losses.dtype import at_least_float32

Rows = Float[Tensor, "n d"]
Square = Float[Tensor, "d d"]
Scalar = Float[Tensor, ""]


@at_least_float32
def barlow_twins(z1: Rows, z2: Rows, *, redundancy: float = 0.0051) -> Scalar:
    """Pull the diagonal of the cross-correlation to 1 and the rest to 0 (equation 1)."""
    correlation = mean_product(standardize(z1), standardize(z2))
    diagonal = (1 - correlation.diagonal()).pow(2).sum()
    return diagonal + redundancy * off_diagonal(correlation)


@at_least_float32
def vicreg(
    z1: Rows,
    z2: Rows,
    *,
    invariance: float = 25.0,
    variance: float = 25.0,
    covariance: float = 1.0,
) -> Scalar:
    """Invariance, variance and covariance terms (equation 6, as the code scales it).

    The released code averages the invariance over columns and the variance term over views; the
    paper does not.
    """
    loss = invariance * (z1 - z2).pow(2).mean()
    for z in (z1, z2):
        centered, rows = center(z), global_size(z)
        cov = mean_product(centered, centered) * (rows / (rows - 1))
        spread = (1 - (cov.diagonal() + 1e-4).sqrt()).relu().mean()
        loss = loss + variance / 2 * spread + covariance * off_diagonal(cov) / len(cov)
    return loss


def standardize(z: Rows) -> Rows:
    """Columns of mean 0 and (biased) variance 1, as batch normalization without weights."""
    centered = center(z)
    var = dist.all_sum(centered.pow(2).sum(0)) / global_size(z)
    return centered * (var + 1e-5).rsqrt()


def center(z: Rows) -> Rows:
    """Columns of mean 0."""
    return z - dist.all_sum(z.sum(0)) / global_size(z)


def mean_product(a: Rows, b: Rows) -> Square:
    """The mean over images of the products of two columns, for every pair."""
    return dist.all_sum(a.T @ b) / global_size(a)


def off_diagonal(square: Square) -> Scalar:
    """Sum of the squared off-diagonal elements."""
    return (square - torch.diag(square.diagonal())).pow(2).sum()


def global_size(z: Rows) -> int:
    """Rows on all processes."""
    return len(z) * dist.world_size()
