"""The queue of past keys: MoCo's negatives, NNCLR's neighbors, what SwAV gives codes to."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from selfsight import dist


class Queue(nn.Module):
    """The last `size` keys of all processes, oldest overwritten first."""

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
    def nearest(self, z: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """The key of greatest cosine to each row (keys are taken for unit vectors)."""
        with torch.autocast(z.device.type, enabled=False):  # rounding would change neighbors
            return self.keys[(z.to(self.keys.dtype) @ self.keys.T).argmax(dim=1)]

    @torch.no_grad()
    def push(self, k: Float[Tensor, "n d"], chosen: Int64[Tensor, " c"] | None = None) -> None:
        """Write the keys of every process, or those chosen of them, at the head and move on.

        They may not be more than the queue holds.
        """
        k = dist.gather(k.detach())
        k = k if chosen is None else k[chosen]
        at = (self.head + torch.arange(len(k), device=k.device)) % len(self.keys)
        # A step that is not finite is not taken, and must not be remembered either.
        self.keys[at] = torch.where(k.isfinite().all(), k.to(self.keys.dtype), self.keys[at])
        self.head.copy_((self.head + len(k)) % len(self.keys))
