"""The queue of past keys: MoCo's negatives, NNCLR's neighbors, SwAV's past embeddings."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from selfsight import dist


class Queue(nn.Module):
    """The last `size` keys of all processes; the oldest are overwritten first."""

    keys: Tensor
    head: Tensor

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("keys", F.normalize(torch.randn(size, dim), dim=1))
        self.register_buffer("head", torch.zeros((), dtype=torch.long))

    def read(self) -> Float[Tensor, "k d"]:
        """A copy, so that a later push cannot reach into this step's graph."""
        return self.keys.clone()

    @torch.no_grad()
    def push(
        self,
        k: Float[Tensor, "n d"],
        *,
        rows: Int64[Tensor, " c"] | None = None,
        skipped: Float[Tensor, ""] | None = None,
    ) -> None:
        """Write the keys of all processes, or these rows of them, at the head and advance it.

        At most `size` keys can be pushed at once. Where `skipped` is 1 nothing changes.
        """
        k = dist.gather(k.detach()).to(self.keys.dtype)
        k = k if rows is None else k[rows]
        slots = (self.head + torch.arange(len(k), device=k.device)) % len(self.keys)
        new_head = (self.head + len(k)) % len(self.keys)
        if skipped is not None:
            k = torch.where(skipped > 0, self.keys[slots], k)
            new_head = torch.where(skipped > 0, self.head, new_head)
        self.keys[slots] = k
        self.head.copy_(new_head)
