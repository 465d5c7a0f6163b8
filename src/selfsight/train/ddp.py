"""Average gradients over processes with torch's DistributedDataParallel."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from selfsight import dist
from selfsight.methods import Method


def distribute(method: Method, device: torch.device) -> nn.Module:
    """Wrap the method in DDP if there are several processes."""
    if dist.world_size() == 1:
        return method
    ids = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(method, device_ids=ids, broadcast_buffers=False)
