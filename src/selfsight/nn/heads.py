"""Projector and predictor heads: they differ in widths, biases and where normalization stands."""

from itertools import pairwise
from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from selfsight.nn.batch_norm import BatchNorm


class Head(nn.Sequential):
    """Layers in sequence. The compiler would see each layer of torch's own Sequential by itself."""

    def forward(self, x: Float[Tensor, "*blocks n i"]) -> Float[Tensor, "*blocks n o"]:
        """Apply all layers; batch norm treats the rows of all blocks as one batch."""
        blocks = x.shape[:-1]
        x = x.flatten(0, -2)
        for layer in self:
            x = layer(x)
        return x.unflatten(0, blocks)


def mlp(
    *dims: int,
    norm: bool = True,
    bias: bool = False,
    last_bias: bool = False,
    last_norm: Literal["both", "scale", "none"] | None = None,
) -> Head:
    """Linear, norm, ReLU for each pair of widths; the last pair is linear, then norm if asked.

    `last_norm` names the learned parameters of the final norm: "both", "scale" only, or "none".
    """
    layers: list[nn.Module] = []
    for i, o in pairwise(dims[:-1]):
        layers += [nn.Linear(i, o, bias=bias), *([BatchNorm(o)] if norm else []), nn.ReLU()]
    layers.append(nn.Linear(dims[-2], dims[-1], bias=last_bias))
    if last_norm is not None:
        layers.append(BatchNorm(dims[-1], affine=last_norm))
    return Head(*layers)


def fast_moco_heads(
    in_dim: int, dim: int, *, hidden_dim: int, predictor_dim: int
) -> tuple[Head, Head]:
    """Fast-MoCo's projector and predictor: SimSiam's, with biases and a final norm with scale."""
    projector = mlp(
        in_dim, hidden_dim, hidden_dim, dim, bias=True, last_bias=True, last_norm="both"
    )
    return projector, mlp(dim, predictor_dim, dim, bias=True, last_bias=True)
