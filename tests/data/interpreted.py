"""`python -m tests.data.interpreted`, with TRITON_INTERPRET=1 set: shrinking without a GPU.

Prints as JSON, for each number of channels, how far the kernel is from torch, in grey levels.
"""

import json

import torch

from sightline.data.shrink import shrunk, together
from tests.views.interpreted import let_numpy_index

SIZES = [((30, 41), (9, 12)), ((17, 90), (16, 81)), ((12, 12), (1, 1)), ((8, 130), (7, 100))]


def pictures(channels, device="cpu"):
    """Noise, in which every pixel counts; and the sizes to shrink it to."""
    made = torch.Generator().manual_seed(channels)
    noise = [
        torch.randint(0, 256, (channels, *size), generator=made, dtype=torch.uint8)
        for size, _ in SIZES
    ]
    return [x.to(device) for x in noise], [size for _, size in SIZES]


def apart(ours, theirs):
    """The largest difference, in grey levels."""
    pairs = zip(ours, theirs, strict=True)
    return max(float((a.cpu().int() - b.cpu().int()).abs().max()) for a, b in pairs)


if __name__ == "__main__":
    torch.set_num_threads(1)
    let_numpy_index()
    print(json.dumps({c: apart(together(*pictures(c)), shrunk(*pictures(c))) for c in (1, 3)}))
