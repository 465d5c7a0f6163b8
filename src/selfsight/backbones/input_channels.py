"""Adapt the first convolution of a trained network to images with other channels."""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from selfsight.errors import UserError

RULE = "each channel has the mean of the {} kernels of the first convolution, times {}/{}"


def spread_kernel(
    kernel: Float[Tensor, "o c h w"], channels: int
) -> Float[Tensor, "o {channels} h w"]:
    """Give each channel the mean of all kernels, scaled so that their sum does not change.

    An image whose channels are all equal then gets the features of that gray image.
    """
    if kernel.shape[1] == channels:
        return kernel
    mean = kernel.mean(dim=1, keepdim=True) * (kernel.shape[1] / channels)
    return mean.expand(-1, channels, -1, -1).contiguous()


def fit_weights(weights: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of a network, with the first convolution adapted to other channels."""
    fitted = dict(weights)
    first = next((name for name, value in expected.items() if value.ndim == 4), "")
    if first in fitted and fitted[first].ndim == 4:
        fitted[first] = spread_kernel(fitted[first], expected[first].shape[1])
    return fitted


def fit_network(network: nn.Module, channels: int) -> str:
    """Adapt a network in place; return a sentence about it, empty if nothing changed."""
    first = next((m for m in network.modules() if isinstance(m, nn.Conv2d)), None)
    if first is None or first.groups != 1:
        raise UserError(
            f"The images have {channels} channels, and the first layer of this network is no "
            "convolution over all of its channels, so that it cannot be fitted to them."
        )
    before = first.in_channels
    if before == channels:
        return ""
    with torch.no_grad():
        first.weight = nn.Parameter(spread_kernel(first.weight, channels))
    first.in_channels = channels
    return f"The images have {channels} channels: {RULE.format(before, before, channels)}."
