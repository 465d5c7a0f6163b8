"""Projector and predictor heads: they differ in widths, biases and where normalization stands."""

from itertools import pairwise
from typing import Literal

from torch import Tensor, nn

from selfsight.nn.batch_norm import BatchNorm


class Head(nn.Sequential):
    """Layers in a row. Of torch's own Sequential the compiler would see each layer by itself."""

    def forward(self, x: Tensor) -> Tensor:
        """One layer after the other."""
        for layer in self:
            x = layer(x)
        return x


def mlp(
    *dims: int,
    norm: bool = True,
    bias: bool = False,
    last_bias: bool = False,
    last_norm: Literal["both", "scale", "none"] | None = None,
) -> Head:
    """Linear, norm, ReLU for each pair of widths; the last pair is linear, then norm if asked.

    `last_norm` names the learned parts of the final norm: "both", "scale" only, or "none".
    """
    layers: list[nn.Module] = []
    for i, o in pairwise(dims[:-1]):
        layers += [nn.Linear(i, o, bias=bias), *([BatchNorm(o)] if norm else []), nn.ReLU()]
    layers.append(nn.Linear(dims[-2], dims[-1], bias=last_bias))
    if last_norm is not None:
        layers.append(BatchNorm(dims[-1], affine=last_norm))
    return Head(*layers)


def patch_heads(in_dim: int, dim: int, hidden_dim: int) -> tuple[Head, Head]:
    """Fast-MoCo's projector and predictor: SimSiam's, but with biases and a norm that is scaled."""
    projector = mlp(in_dim, dim, dim, dim, bias=True, last_bias=True, last_norm="both")
    return projector, mlp(dim, hidden_dim, dim, bias=True, last_bias=True)
