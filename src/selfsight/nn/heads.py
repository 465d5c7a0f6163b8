"""Projector and predictor heads: they differ in widths, biases and where normalization stands."""

from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
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
    activation: type[nn.Module] = nn.ReLU,
) -> Head:
    """Linear, norm, activation for each pair of widths; the last pair is linear, norm if asked.

    `last_norm` names the learned parameters of the final norm: "both", "scale" only, or "none".
    """
    layers: list[nn.Module] = []
    for i, o in pairwise(dims[:-1]):
        layers += [nn.Linear(i, o, bias=bias), *([BatchNorm(o)] if norm else []), activation()]
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


class DistillationHead(nn.Module):
    """DINO's head: layers with GELU, then the cosines of their output with K trained directions.

    With `free_scale` each of the K cosines is multiplied by a trained number.
    """

    def __init__(self, *dims: int, norm: bool, free_scale: bool) -> None:
        super().__init__()
        self.mlp = mlp(*dims[:-1], norm=norm, bias=True, last_bias=True, activation=nn.GELU)
        for layer in self.mlp:
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)
        self.last = nn.Linear(dims[-2], dims[-1], bias=False)
        self.scale = nn.Parameter(torch.ones(dims[-1], 1)) if free_scale else None

    def forward(
        self, h: Float[Tensor, "n i"], frozen: Bool[Tensor, ""] | None = None
    ) -> Float[Tensor, "n k"]:
        """Logits in at least float32; where `frozen` the last layer gets no gradient."""
        z = self.mlp(h)
        z = z.to(torch.promote_types(z.dtype, torch.float32))
        weight: Tensor = self.last.weight
        scale: Tensor | None = self.scale
        if frozen is not None:  # the host does not read it
            weight = torch.where(frozen, weight.detach(), weight)
            scale = None if scale is None else torch.where(frozen, scale.detach(), scale)
        with torch.autocast(z.device.type, enabled=False):
            directions = F.normalize(weight, dim=1)
            directions = directions if scale is None else scale * directions
            return F.normalize(z, dim=1) @ directions.T
