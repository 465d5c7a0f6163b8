"""Losses on the statistics of the global batch: their sums run over all processes."""

import torch
from jaxtyping import Float
from torch import Tensor

from selfsight import dist
from selfsight.losses.float32_losses import at_least_float32, unit

Rows = Float[Tensor, "n d"]
Square = Float[Tensor, "d d"]
Scalar = Float[Tensor, ""]


@at_least_float32
def barlow_twins(z1: Rows, z2: Rows, *, redundancy: float = 0.0051) -> Scalar:
    """Pull the diagonal of the cross-correlation to 1 and the rest to 0 (equation 1)."""
    diagonal, off_diagonal = column_products(standardize(z1), standardize(z2))
    return (1 - diagonal).pow(2).sum() + redundancy * off_diagonal


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
        centered = center(z)
        unbiased = global_size(z) / (global_size(z) - 1)
        biased, off_diagonal = column_products(centered, centered)
        spread = (1 - (biased * unbiased + 1e-4).sqrt()).relu().mean()
        loss = loss + variance / 2 * spread
        loss = loss + covariance * unbiased**2 * off_diagonal / z.shape[1]
    return loss


@at_least_float32
def lejepa(
    z: Float[Tensor, "v n d"],
    directions: Float[Tensor, "s d"],
    *,
    num_large: int = 2,
    sigreg_weight: float = 0.05,
    num_knots: int = 17,
    last_knot: float = 3.0,
) -> Scalar:
    """Every view predicts the mean of the large ones, which come first; `sigreg` spreads images.

    The released code averages the squared distance over columns; the paper prints a sum.
    """
    prediction = (z[:num_large].mean(0) - z).square().mean()
    spread = sigreg(z, directions, num_knots=num_knots, last_knot=last_knot)
    return (1 - sigreg_weight) * prediction + sigreg_weight * spread


@at_least_float32
def sigreg(
    z: Float[Tensor, "v n d"],
    directions: Float[Tensor, "s d"],
    *,
    num_knots: int = 17,
    last_knot: float = 3.0,
) -> Scalar:
    """Epps and Pulley's test of normality, of the images' projections on random directions.

    For each view and direction: images times the integral of |characteristic function of the
    projections - that of N(0, 1)|^2, weighted by exp(-t^2 / 2); then the mean (LeJEPA, algorithm
    1). The knots of the trapezoid rule are in [0, last_knot], and count for -t too. The directions
    may have any length.
    """
    t = torch.linspace(0, last_knot, num_knots, dtype=z.dtype, device=z.device)
    normal = (-t.square() / 2).exp()
    weights = normal * (2 * last_knot / (num_knots - 1))
    weights = torch.cat([weights[:1] / 2, weights[1:-1], weights[-1:] / 2])
    angles = (z @ unit(directions).to(z.dtype).T)[..., None] * t  # [V, N, S, T]
    real, imaginary = dist.mean(torch.stack([angles.cos().mean(1), angles.sin().mean(1)]))
    distance = (real - normal).square() + imaginary.square()  # [V, S, T]
    return (distance @ weights).mean() * (z.shape[1] * dist.world_size())


def standardize(z: Rows) -> Rows:
    """Columns of mean 0 and (biased) variance 1, as batch normalization without weights."""
    centered = center(z)
    var = dist.all_sum(centered.pow(2).sum(0)) / global_size(z)
    return centered * (var + 1e-5).rsqrt()


def center(z: Rows) -> Rows:
    """Columns of mean 0."""
    return z - dist.all_sum(z.sum(0)) / global_size(z)


def column_products(a: Rows, b: Rows) -> tuple[Float[Tensor, " d"], Scalar]:
    """The diagonal of `mean_product`, and the sum of the squares of its other elements.

    With few images their products are smaller than those of columns: |A'B|^2 = <AA', BB'>. As A'B
    then has a low rank, the squares beside its diagonal are no small difference of large numbers.
    """
    if 2 * global_size(a) > a.shape[1]:
        product = mean_product(a, b)
        others = product - torch.diag(product.diagonal())
        return product.diagonal(), others.square().sum()
    images_a = a @ dist.gather(a).T  # [N, G]
    images_b = images_a if b is a else b @ dist.gather(b).T
    squares = dist.all_sum((images_a * images_b).sum()) / global_size(a) ** 2
    diagonal = dist.all_sum((a * b).sum(0)) / global_size(a)
    return diagonal, squares - diagonal.square().sum()


def mean_product(a: Rows, b: Rows) -> Square:
    """The mean over images of the products of two columns, for every pair."""
    return dist.all_sum(a.T @ b) / global_size(a)


def global_size(z: Rows) -> int:
    """Rows on all processes."""
    return len(z) * dist.world_size()
