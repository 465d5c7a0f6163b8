"""The memory bank of instance discrimination: one embedding for every picture."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from sightline import dist


class Memory(nn.Module):
    """Rows by picture index; a picture's row moves towards its embedding whenever it is seen.

    They start uniform, of about unit length, and are made unit vectors by their first update.
    """

    rows: Tensor

    def __init__(self, num_pictures: int, dim: int) -> None:
        super().__init__()
        bound = math.sqrt(3 / dim)
        self.register_buffer("rows", torch.empty(num_pictures, dim).uniform_(-bound, bound))

    def read(self, index: Int64[Tensor, "*which"] | None = None) -> Float[Tensor, "*which d"]:
        """A copy of these rows, or of all: a later update cannot reach into this step's graph."""
        return self.rows.clone() if index is None else self.rows[index]

    @torch.no_grad()
    def update(self, index: Int64[Tensor, " n"], v: Float[Tensor, "n d"], momentum: float) -> None:
        """row = unit(momentum * row + (1 - momentum) * unit(v)), for the pictures of all processes.

        No picture may be in a batch twice: which of its two embeddings counts is undefined.
        """
        index, v = dist.gather(index), dist.gather(v.detach())
        new = F.normalize(v.to(self.rows.dtype), dim=1)
        self.rows[index] = F.normalize(self.rows[index].lerp(new, 1 - momentum), dim=1)
