"""Average gradients over processes with torch's DistributedDataParallel."""

import warnings

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from selfsight import dist
from selfsight.methods import Method


def distribute(method: Method, device: torch.device) -> nn.Module:
    """Wrap the method in DDP if there are several processes."""
    if dist.world_size() == 1:
        return method
    # Weights of 1 x 1 convolutions have two names for one layout, and torch warns of a copy.
    warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
    ids = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(method, device_ids=ids, broadcast_buffers=False)
