"""`python -m tests.data.decoders.resize_interpreted` with TRITON_INTERPRET=1: shrink without a GPU.

Prints as JSON, for each number of channels, how far the kernel is from torch, in gray levels.
"""

import json

import torch

from selfsight.data.decoders.resize_to_store import resize_each, resize_each_in_one_launch
from tests.views.interpreted import let_numpy_index

# Not to a width of 1, where torch 2.11 is wrong by some gray levels (and Pillow is not).
SIZES = [((7, 21), (4, 12)), ((5, 150), (4, 140)), ((8, 6), (2, 2))]


def images(channels, device="cpu"):
    """Noise, in which every pixel counts; and the sizes to shrink it to."""
    made = torch.Generator().manual_seed(channels)
    noise = [
        torch.randint(0, 256, (channels, *size), generator=made, dtype=torch.uint8)
        for size, _ in SIZES
    ]
    return [x.to(device) for x in noise], [size for _, size in SIZES]


def apart(ours, theirs):
    """The largest difference, in gray levels."""
    pairs = zip(ours, theirs, strict=True)
    return max(float((a.cpu().int() - b.cpu().int()).abs().max()) for a, b in pairs)


if __name__ == "__main__":
    torch.set_num_threads(1)
    let_numpy_index()
    print(
        json.dumps(
            {
                c: apart(resize_each_in_one_launch(*images(c)), resize_each(*images(c)))
                for c in (1, 3)
            }
        )
    )
