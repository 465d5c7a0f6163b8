"""Count the parameters and multiply-adds of a network without allocating weights."""

from functools import cache

import torch

from selfsight.backbones import BackboneConfig


def parameters(config: BackboneConfig) -> int:
    """Count the parameters of the network, frozen ones included."""
    with torch.device("meta"):
        return sum(p.numel() for p in config.build().parameters())


@cache
def multiply_adds(config: BackboneConfig) -> int:
    """Count the multiply-adds of one image: convolutions, linear layers, attention."""
    from torch.utils.flop_counter import FlopCounterMode  # imports triton

    with torch.device("meta"):
        network = config.build().eval()
        image = torch.empty(1, config.in_channels, config.image_size, config.image_size)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(image)
    return counter.get_total_flops() // 2
