"""MoCo v1 and v2 (He et al. 2019, arXiv:1911.05722; Chen et al. 2020, arXiv:2003.04297).

Algorithm 1 of the first: the key of the same image against a queue of past keys.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F

from selfsight import dist
from selfsight.losses.contrastive import queue_info_nce
from selfsight.methods.base import DataInfo, Method, MethodConfig, Moment, Step, Views
from selfsight.nn import Backbone, Encoder, Queue, Teacher, mlp
from selfsight.nn.batch_norm import BatchNormMode, shuffle_order


@dataclass(frozen=True, kw_only=True)
class MoCoConfig(MethodConfig):
    """Defaults: MoCo v2. For v1: mlp=False, temperature=0.07."""

    has_keys: ClassVar[bool] = True
    info_nce: ClassVar[bool] = True

    dim: int = 128
    mlp: bool = True  # False: one linear layer
    queue_size: int = 65536  # below the batch size: as many random keys of the batch before
    alpha: float | None = None  # EqCo: how many negatives the queue stands for
    temperature: float = 0.2
    momentum: float = 0.999
    bn: BatchNormMode = "shuffle"

    def create(self, backbone: Backbone, data: DataInfo) -> "MoCo":
        """The method around this backbone."""
        return MoCo(backbone, self)

    def chance_loss(self, batch_size: int) -> float:
        """Guessing among the positive and the queue, or the negatives that it stands for."""
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
        # Shuffled, so that a key's batch-norm statistics no longer give its query away.
        _, k = self.teacher(x_k, shuffle_order(c.bn, at, x_k))
        loss = queue_info_nce(q, k, self.queue.read(), temperature=c.temperature, alpha=c.alpha)
        return Step(loss=loss, features=h, update={"keys": F.normalize(k, dim=1)})

    def after_step(self, at: Moment, step: Step) -> None:
        """Let the teacher follow the student, and push the keys."""
        keys, size = step.update["keys"], self.config.queue_size
        self.teacher.follow(self.student, self.config.momentum, skipped=step.skipped)
        total = len(keys) * dist.world_size()
        rows = at.permutation("queue", total, keys.device)[:size] if size < total else None
        self.queue.push(keys, rows=rows, skipped=step.skipped)
