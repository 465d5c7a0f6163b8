"""Prototypes of clusters, and past embeddings that help to share images among them (SwAV)."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from selfsight import dist
from selfsight.nn.queue import Queue


class Prototypes(nn.Module):
    """Unit vectors that are trained, beside a queue for each view that is given codes."""

    def __init__(self, count: int, dim: int, queue_size: int, num_queues: int = 2) -> None:
        super().__init__()
        self.weight = nn.Parameter(F.normalize(torch.randn(count, dim), dim=1))
        self.num_queues = num_queues
        queues = [Queue(queue_size, dim) for _ in range(num_queues)] if queue_size else []
        self.queues: Any = nn.ModuleList(queues)

    def forward(self, frozen: Bool[Tensor, ""]) -> Float[Tensor, "k d"]:
        """The prototypes, with a gradient unless frozen: chosen on the device, no host waits."""
        return torch.where(frozen, self.weight.detach(), self.weight)

    @torch.no_grad()
    def normalize(self) -> None:
        """Back to length one."""
        self.weight.copy_(F.normalize(self.weight, dim=1))

    def past(self) -> list[Float[Tensor, "q d"]]:
        """This process's share of each queue; no rows where there are no queues."""
        if not self.queues:
            return [self.weight.detach()[:0]] * self.num_queues
        return [q.keys.clone().tensor_split(dist.world_size())[dist.rank()] for q in self.queues]

    def remember(self, z: Float[Tensor, "v n d"]) -> None:
        """Put the embeddings of the first views into their queues."""
        for queue, rows in zip(self.queues, z, strict=False):
            queue.push(F.normalize(rows, dim=1))
