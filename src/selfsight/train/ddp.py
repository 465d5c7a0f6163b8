"""Average gradients over processes with torch's DistributedDataParallel."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from selfsight import dist
from selfsight.methods import Method


def distribute(method: Method, device: torch.device) -> nn.Module:
    """The method as the loop calls it: itself on one process, wrapped on several."""
    if dist.world_size() == 1:
        return method
    ids = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(method, device_ids=ids, broadcast_buffers=False)
