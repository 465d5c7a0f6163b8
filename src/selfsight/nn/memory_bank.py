"""The memory bank of instance discrimination: one embedding for every image."""

import math
import os

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from selfsight import dist
from selfsight.errors import UserError


class MemoryBank(nn.Module):
    """One row per image; an image's row moves toward its embedding whenever it is in a batch.

    Rows start uniform, of about unit length, and become unit vectors by their first update.
    """

    rows: Tensor

    def __init__(self, num_images: int, dim: int) -> None:
        super().__init__()
        check_memory_bank_fits(num_images, dim)
        bound = math.sqrt(3 / dim)
        self.register_buffer("rows", torch.empty(num_images, dim).uniform_(-bound, bound))

    def read(self, index: Int64[Tensor, "*n"] | None = None) -> Float[Tensor, "*n d"]:
        """A copy of these rows, or of all: a later update cannot reach into this step's graph."""
        return self.rows.clone() if index is None else self.rows[index]

    @torch.no_grad()
    def update(
        self,
        index: Int64[Tensor, " n"],
        v: Float[Tensor, "n d"],
        momentum: float,
        *,
        skipped: Float[Tensor, ""] | None = None,
    ) -> None:
        """Set row = unit(momentum * row + (1 - momentum) * unit(v)), for images of all processes.

        No image may be in a batch twice: which of its two embeddings counts is undefined. Where
        `skipped` is 1 nothing changes.
        """
        index, v = dist.gather(index), dist.gather(v.detach())
        new = F.normalize(v.to(self.rows.dtype), dim=1)
        old = self.rows[index]
        moved = F.normalize(old.lerp(new, 1 - momentum), dim=1)
        self.rows[index] = moved if skipped is None else torch.where(skipped > 0, old, moved)


def check_memory_bank_fits(num_images: int, dim: int) -> None:
    """Raise a UserError before the system would kill the process for lack of memory."""
    needed = 4 * num_images * dim
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if torch.cuda.is_available():
        available = min(available, torch.cuda.mem_get_info()[1])
    if needed > available:
        raise UserError(
            f"A memory bank of {dim} numbers for each of {num_images:,} images takes {needed:,} "
            f"bytes, and this machine has {available:,}. Use a method without a memory bank, such "
            "as moco, or fewer images."
        )
