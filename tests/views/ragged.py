"""Batches of images of many shapes for the tests of fused views."""

import torch

from selfsight.ragged_batch import Ragged

# Smaller than the views of tests, larger, and one pixel wide: resized both ways.
SHAPES = ((13, 17), (70, 41), (30, 1))


def ragged(shapes=SHAPES, channels=3, seed=0, device="cpu"):
    """Random images with some bytes of no image between them."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.tensor(shapes)
    room = channels * sizes.prod(1) + torch.arange(len(shapes)) % 7
    starts = room.cumsum(0) - room
    total = int(room.sum())
    flat = torch.randint(0, 256, (total,), generator=generator, dtype=torch.uint8)
    largest = (int(sizes[:, 0].max()), int(sizes[:, 1].max()))
    return Ragged(flat, starts, sizes, channels, largest).to(torch.device(device))


def worst(ours, theirs):
    """The largest difference of any pixel, in units of the normalized views."""
    pairs = zip(ours, theirs, strict=True)
    return max((one.float() - other.float()).abs().max().item() for one, other in pairs)
