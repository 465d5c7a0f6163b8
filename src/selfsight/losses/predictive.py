"""Losses that compare a prediction with its target; there are no negatives.

Targets get no gradient. A prediction may hold several blocks for the same targets.
"""

from jaxtyping import Float
from torch import Tensor

from selfsight.losses.dtype import full_precision, unit

Scalar = Float[Tensor, ""]


@full_precision
def negative_cosine(p: Float[Tensor, "*blocks n d"], z: Float[Tensor, "n d"]) -> Scalar:
    """Mean of -cos(p, z) (SimSiam, equation 1)."""
    return -(unit(p) * unit(z.detach())).sum(-1).mean()


def regression(p: Float[Tensor, "*blocks n d"], z: Float[Tensor, "n d"]) -> Scalar:
    """Mean squared distance of the unit vectors, 2 - 2 cos(p, z) (BYOL, equation 2)."""
    return 2 + 2 * negative_cosine(p, z)
