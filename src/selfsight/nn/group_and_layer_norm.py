"""Norms over each image alone, in place of batch norm."""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from selfsight.nn.batch_norm import BatchNorm

Norm = Literal["bn", "ln", "ws"]


class StandardizedConv(nn.Conv2d):
    """A convolution whose weights have mean 0 and deviation 1 per output channel.

    Qiao et al. 2019 (arXiv:1903.10520), with the epsilon of their code.
    """

    def forward(self, x: Float[Tensor, "n i h w"]) -> Float[Tensor, "n o _ _"]:
        """Convolve with the standardized weights."""
        std, mean = torch.std_mean(self.weight, (1, 2, 3), keepdim=True)
        return self._conv_forward(x, (self.weight - mean) / (std + 1e-5), self.bias)


def replace_batch_norm(module: nn.Module, norm: Literal["ln", "ws"]) -> nn.Module:
    """Replace our BN by a norm over each image alone.

    "ln" is GroupNorm of one group, which on rows is LayerNorm; "ws" is GroupNorm of 32 groups, or
    of the most that divide the channels, after convolutions with standardized weights.
    """
    if isinstance(module, BatchNorm):
        return _group_norm(module, 1 if norm == "ln" else 32)
    if norm == "ws" and type(module) is nn.Conv2d:
        return _standardized(module)
    for name, child in module.named_children():
        setattr(module, name, replace_batch_norm(child, norm))
    return module


def _group_norm(bn: BatchNorm, groups: int) -> nn.Module:
    channels = len(bn.running_mean)
    norm = nn.GroupNorm(math.gcd(groups, channels), channels, bn.eps, affine=bn.weight is not None)
    if bn.weight is not None:  # zero-initialized ones stay so
        norm.weight, norm.bias = bn.weight, bn.bias  # type: ignore[assignment]
    return norm if isinstance(bn.after, nn.Identity) else nn.Sequential(norm, bn.after)


def _standardized(conv: nn.Conv2d) -> StandardizedConv:
    ours = StandardizedConv(
        conv.in_channels,
        conv.out_channels,
        conv.kernel_size,  # type: ignore[arg-type]
        conv.stride,  # type: ignore[arg-type]
        conv.padding,  # type: ignore[arg-type]
        conv.dilation,  # type: ignore[arg-type]
        conv.groups,
        conv.bias is not None,
        conv.padding_mode,
    )
    ours.weight, ours.bias = conv.weight, conv.bias
    return ours
