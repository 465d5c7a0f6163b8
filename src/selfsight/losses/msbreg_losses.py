"""Losses of MSBReg (Moon et al. 2022): K views of each image, as blocks of rows.

Its supplement names the losses without formulas, and no code was released: docs/methods/msbreg.md
explains how we read it.
"""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from selfsight import dist
from selfsight.losses.decorrelation import column_products, mean_product, standardize
from selfsight.losses.float32_losses import at_least_float32, unit

Blocks = Float[Tensor, "k n d"]
Rows = Float[Tensor, "n d"]
Scalar = Float[Tensor, ""]
Form = Literal["a", "b", "c"]


@at_least_float32
def leave_one_out(p: Blocks, t: Blocks) -> Scalar:
    """Squared distance of each prediction to the mean of the other views' targets.

    With two views half of BYOL's loss.
    """
    t = unit(t.detach())
    others = (t.sum(0) - t) / (len(t) - 1)
    return _squared_distance(unit(p), others)


@at_least_float32
def centroids(p: Blocks, t: Blocks) -> Scalar:
    """Squared distance of the mean prediction to the mean target."""
    return _squared_distance(unit(p).mean(0), unit(t.detach()).mean(0))


@at_least_float32
def repeated_pairs(p: Blocks, t: Blocks) -> Scalar:
    """Views 1 and 2, 3 and 4, ... predict each other: K / 2 runs of BYOL on one batch."""
    partners = t.detach().unflatten(0, (-1, 2)).flip(1).flatten(0, 1)
    return _squared_distance(unit(p), unit(partners))


@at_least_float32
def brownian(p: Blocks, force: Rows) -> Scalar:
    """Mean cosine with a random direction of each image, which all its views share."""
    return (unit(p) * unit(force).to(p.dtype)).sum(-1).mean()


@at_least_float32
def singular_values(p: Blocks, *, form: Form = "b") -> Scalar:
    """How far the singular values of the unit rows of all images and views are from equal.

    a: squares of the columns' correlations beside the diagonal. b: squared distance of
    C Z'Z / rows to the identity, which requires equal squared singular values. c: squared distance
    of the singular values to their mean; its matrix decomposition makes the host wait for the GPU.
    """
    z = unit(p).flatten(0, 1)  # [K N, C]
    if form == "a":
        columns = standardize(z)
        return column_products(columns, columns)[1]
    if form == "b":
        identity = torch.eye(z.shape[1], device=z.device, dtype=z.dtype)
        return (z.shape[1] * mean_product(z, z) - identity).pow(2).sum()
    # Multiplied out: with fewer rows than columns, the missing singular values are 0 and count.
    values = torch.linalg.svdvals(dist.gather(z))
    return values.pow(2).sum() - values.sum().pow(2) / z.shape[1]


@at_least_float32
def uniformity(p: Blocks) -> Scalar:
    """Log of the mean Gaussian potential between images, averaged over views.

    Wang and Isola 2020 (arXiv:2005.10242), with t = 2.
    """
    n, p = p.shape[1], unit(p)
    everyone = dist.gather(p.transpose(0, 1)).transpose(0, 1)  # [K, G, C]
    potential = (4 * (p @ everyone.mT - 1)).exp()  # |x - y|^2 = 2 - 2 x.y
    others = torch.arange(everyone.shape[1], device=p.device)
    own = dist.rank() * n + torch.arange(n, device=p.device)
    between = potential.where(own[:, None] != others, 0.0).sum((1, 2))  # [K]
    return (dist.all_sum(between) / (len(others) * (len(others) - 1))).log().mean()


def _squared_distance(a: Float[Tensor, "*rows d"], b: Float[Tensor, "*rows d"]) -> Scalar:
    return (a - b).pow(2).sum(-1).mean()
