"""SwAV's prototypes, and the queues of past embeddings that are assigned to them too."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from selfsight import dist
from selfsight.nn.queue import Queue


class Prototypes(nn.Module):
    """Trained unit vectors, and one queue for each view that is assigned to them."""

    def __init__(self, num_prototypes: int, dim: int, queue_size: int, num_queues: int = 2) -> None:
        super().__init__()
        self.weight = nn.Parameter(F.normalize(torch.randn(num_prototypes, dim), dim=1))
        self.num_queues = num_queues
        queues = [Queue(queue_size, dim) for _ in range(num_queues)] if queue_size else []
        self.queues: Any = nn.ModuleList(queues)

    def forward(self, frozen: Bool[Tensor, ""]) -> Float[Tensor, "k d"]:
        """The prototypes, without a gradient where `frozen`; the host does not read it."""
        return torch.where(frozen, self.weight.detach(), self.weight)

    def past_embeddings(self) -> list[Float[Tensor, "q d"]]:
        """This process's part of each queue; no rows where there are no queues."""
        if not self.queues:
            return [self.weight.detach()[:0]] * self.num_queues
        return [q.keys.clone().tensor_split(dist.world_size())[dist.rank()] for q in self.queues]

    @torch.no_grad()
    def normalize(self, *, skipped: Float[Tensor, ""] | None = None) -> None:
        """Rescale the prototypes to length one."""
        unit = F.normalize(self.weight, dim=1)
        self.weight.copy_(unit if skipped is None else torch.where(skipped > 0, self.weight, unit))

    def push(self, z: Float[Tensor, "v n d"], *, skipped: Float[Tensor, ""] | None = None) -> None:
        """Push the embeddings of the first views into their queues."""
        for queue, rows in zip(self.queues, z, strict=False):
            queue.push(F.normalize(rows, dim=1), skipped=skipped)
