"""MoCo v1 and v2 (He et al. 2019, arXiv:1911.05722; Chen et al. 2020, arXiv:2003.04297).

Algorithm 1 of the first: the key of the same image against a queue of past keys.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch.nn.functional as F

from selfsight import dist
from selfsight.losses.contrastive import queue_info_nce
from selfsight.methods.base import DataFacts, Method, MethodConfig, Moment, Step, Views, positive
from selfsight.nn import Backbone, Encoder, Queue, Teacher, mlp


@dataclass(frozen=True, kw_only=True)
class MoCoConfig(MethodConfig):
    """Defaults: MoCo v2. For v1: mlp=False, temperature=0.07."""

    shuffles: ClassVar[bool] = True
    info_nce: ClassVar[bool] = True

    dim: int = 128
    mlp: bool = True  # False: one linear layer
    queue_size: int = 65536  # below the batch: as many random keys of the batch before
    alpha: float | None = None  # EqCo: how many negatives the queue stands for
    temperature: float = 0.2
    momentum: float = 0.999
    bn: Literal["sync", "split", "shuffle"] = "shuffle"

    def make(self, backbone: Backbone, data: DataFacts) -> "MoCo":
        """The method around this backbone."""
        return MoCo(backbone, self)

    def refuse(self, *, batch_size: int) -> None:
        """A query needs negatives, and EqCo some to stand for."""
        positive(queue_size=self.queue_size, alpha=self.alpha)

    def chance_loss(self, batch_size: int) -> float:
        """A guess among the positive and the queue, or what the queue stands for."""
        return math.log(1 + (self.alpha or self.queue_size))


class MoCo(Method):
    """Student = backbone + projector; the teacher, its moving average, fills the queue."""

    def __init__(self, backbone: Backbone, config: MoCoConfig) -> None:
        super().__init__()
        hidden = [backbone.dim] if config.mlp else []
        head = mlp(backbone.dim, *hidden, config.dim, norm=False, bias=True, last_bias=True)
        self.config = config
        self.student = Encoder(backbone, head)
        self.teacher = Teacher(self.student)
        self.queue = Queue(config.queue_size, config.dim)

    def forward(self, views: Views, at: Moment) -> Step:
        """(K + 1)-way classification: the positive is class 0."""
        x_q, x_k = views
        c = self.config
        h, q = self.student(x_q)
        # Shuffled, so that the statistics of a key's batch norm give its query away no more.
        _, k = self.teacher(x_k, c.order(at, x_k))
        loss = queue_info_nce(q, k, self.queue.read(), temperature=c.temperature, alpha=c.alpha)
        total = len(k) * dist.world_size()
        short = c.queue_size < total
        chosen = at.permutation("queue", total)[: c.queue_size] if short else None
        self.queue.push(F.normalize(k, dim=1), chosen)
        return Step(loss=loss, features=h)

    def after_step(self, at: Moment) -> None:
        """Let the teacher follow the student."""
        self.teacher.follow(self.student, self.config.momentum)
