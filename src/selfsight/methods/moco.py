"""MoCo v1 and v2 (He et al. 2019, arXiv:1911.05722; Chen et al. 2020, arXiv:2003.04297).

Algorithm 1 of the first: the key of the same image against a queue of past keys. MoCo v2+ (Chen,
He 2020, arXiv:2011.10566, appendix C) does so in both directions.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F

from selfsight import dist
from selfsight.losses.contrastive import queue_info_nce
from selfsight.methods.base import (
    DataInfo,
    Method,
    MethodConfig,
    Moment,
    Step,
    Views,
    check_queue_holds_batch,
)
from selfsight.nn import Backbone, Encoder, Queue, Teacher, mlp
from selfsight.nn.batch_norm import BatchNormMode, shuffle_order


@dataclass(frozen=True, kw_only=True)
class MoCoConfig(MethodConfig):
    """Defaults: MoCo v2. For v1: mlp=False, temperature=0.07. For v2+: symmetric=True."""

    has_keys: ClassVar[bool] = True
    info_nce: ClassVar[bool] = True

    dim: int = 128
    mlp: bool = True  # False: one linear layer
    hidden_dim: int | None = None  # of the two layers; None: as wide as the features
    symmetric: bool = False  # both views are queries; the loss is the mean of both directions
    queue_size: int = 65536  # below the batch size: as many random keys of the batch before
    alpha: float | None = None  # EqCo: how many negatives the queue counts as
    temperature: float = 0.2
    momentum: float = 0.999
    bn: BatchNormMode = "shuffle"

    def create(self, backbone: Backbone, data: DataInfo) -> "MoCo":
        """The method around this backbone."""
        return MoCo(backbone, self)

    def validate_batch_size(self, batch_size: int) -> None:
        """With a symmetric loss, a queue must hold the keys of both views."""
        if self.symmetric:
            check_queue_holds_batch(self.queue_size, 2 * batch_size)

    def chance_loss(self, batch_size: int) -> float:
        """Guessing among the positive and the queue, or EqCo's alpha negatives."""
        return math.log(1 + (self.alpha or self.queue_size))


class MoCo(Method):
    """Student = backbone + projector; the teacher, its moving average, fills the queue."""

    def __init__(self, backbone: Backbone, config: MoCoConfig) -> None:
        super().__init__()
        hidden = [config.hidden_dim or backbone.dim] if config.mlp else []
        head = mlp(backbone.dim, *hidden, config.dim, norm=False, bias=True, last_bias=True)
        self.config = config
        self.student = Encoder(backbone, head)
        self.teacher = Teacher(self.student)
        self.queue = Queue(config.queue_size, config.dim)

    def forward(self, views: Views, at: Moment) -> Step:
        """(K + 1)-way classification: the positive is class 0."""
        x1, x2 = views
        c, queue = self.config, self.queue.read()
        contrast = partial(queue_info_nce, temperature=c.temperature, alpha=c.alpha)
        # Shuffled, so that batch-norm statistics do not reveal which key belongs to a query.
        order = shuffle_order(c.bn, at, x2)
        h, q1 = self.student(x1)
        _, k2 = self.teacher(x2, order)
        loss, keys = contrast(q1, k2, queue), k2[None]
        if c.symmetric:
            _, q2 = self.student(x2)
            _, k1 = self.teacher(x1, order)
            loss, keys = (loss + contrast(q2, k1, queue)) / 2, torch.stack([k1, k2])
        return Step(loss=loss, features=h, update={"keys": F.normalize(keys, dim=2)})

    def after_step(self, at: Moment, step: Step) -> None:
        """Let the teacher follow the student, and push the keys."""
        keys, size = step.update["keys"], self.config.queue_size  # [1 or 2, N, D]
        self.teacher.follow(self.student, self.config.momentum, skipped=step.skipped)
        total = keys.shape[1] * dist.world_size()
        rows = at.permutation("queue", total, keys.device)[:size] if size < total else None
        for k in keys:  # view after view, in the same order for any number of processes
            self.queue.push(k, rows=rows, skipped=step.skipped)
