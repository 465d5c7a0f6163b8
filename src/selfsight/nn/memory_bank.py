"""The memory bank of instance discrimination: one embedding for every image."""

import math
import os

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from selfsight import dist
from selfsight.errors import UserError


class Memory(nn.Module):
    """Rows by image index; an image's row moves toward its embedding whenever it is seen.

    They start uniform, of about unit length, and are made unit vectors by their first update.
    """

    rows: Tensor

    def __init__(self, num_images: int, dim: int) -> None:
        super().__init__()
        refuse_too_large(num_images, dim)
        bound = math.sqrt(3 / dim)
        self.register_buffer("rows", torch.empty(num_images, dim).uniform_(-bound, bound))

    def read(self, index: Int64[Tensor, "*which"] | None = None) -> Float[Tensor, "*which d"]:
        """A copy of these rows, or of all: a later update cannot reach into this step's graph."""
        return self.rows.clone() if index is None else self.rows[index]

    @torch.no_grad()
    def update(self, index: Int64[Tensor, " n"], v: Float[Tensor, "n d"], momentum: float) -> None:
        """row = unit(momentum * row + (1 - momentum) * unit(v)), for the images of all processes.

        No image may be in a batch twice: which of its two embeddings counts is undefined.
        """
        index, v = dist.gather(index), dist.gather(v.detach())
        new = F.normalize(v.to(self.rows.dtype), dim=1)
        old = self.rows[index]
        moved = F.normalize(old.lerp(new, 1 - momentum), dim=1)
        # A step that is not finite is not taken, and must not be remembered either.
        self.rows[index] = torch.where(v.isfinite().all(), moved, old)


def refuse_too_large(num_images: int, dim: int) -> None:
    """Before the rows are made: the system would end the process without a word."""
    needed = 4 * num_images * dim
    room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if torch.cuda.is_available():
        room = min(room, torch.cuda.mem_get_info()[1])
    if needed > room:
        raise UserError(
            f"A row of {dim} numbers for each of {num_images:,} images takes {needed:,} bytes, "
            f"and this machine has {room:,}. Use a method without a row per image, such as moco, "
            "or fewer images."
        )
