"""Losses that compare a prediction with its target; there are no negatives.

Targets get no gradient. A prediction may hold several blocks for the same targets.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from selfsight.losses.float32_losses import at_least_float32, unit

Scalar = Float[Tensor, ""]


@at_least_float32
def negative_cosine(p: Float[Tensor, "*blocks n d"], z: Float[Tensor, "n d"]) -> Scalar:
    """Mean of -cos(p, z) (SimSiam, equation 1); the caller stops the gradient of z."""
    return -(unit(p) * unit(z)).sum(-1).mean()


@at_least_float32
def mean_of_others(z: Float[Tensor, "v n d"]) -> Float[Tensor, "v n d"]:
    """For each view, the mean of the other views' embeddings, not normalized (FastSiam)."""
    return torch.stack([torch.cat([z[:i], z[i + 1 :]]).mean(0) for i in range(len(z))])


def regression(p: Float[Tensor, "*blocks n d"], z: Float[Tensor, "n d"]) -> Scalar:
    """Mean squared distance of the unit vectors, 2 - 2 cos(p, z) (BYOL, equation 2)."""
    return 2 + 2 * negative_cosine(p, z)
