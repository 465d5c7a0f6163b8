"""The queue of past keys of MoCo v1 and v2."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from sightline import dist


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
    def push(self, k: Float[Tensor, "n d"]) -> None:
        """Write the keys of every process at the head and move on."""
        k = dist.gather(k.detach())
        at = (self.head + torch.arange(len(k), device=k.device)) % len(self.keys)
        self.keys[at] = k.to(self.keys.dtype)
        self.head.copy_((self.head + len(k)) % len(self.keys))
