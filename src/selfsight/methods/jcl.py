"""JCL (Cai et al. 2020, arXiv:2009.14776), algorithm 1: MoCo with infinitely many keys."""

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F

from selfsight.check_settings import NOT_NEGATIVE, Range
from selfsight.losses.contrastive import jcl, queue_info_nce
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
class JCLConfig(MethodConfig):
    """Defaults: the paper's. The released script: num_keys=4, strength=2."""

    has_keys: ClassVar[bool] = True
    ranges: ClassVar[dict[str, Range]] = {
        "num_keys": Range(2, 100),  # a covariance needs two
        "strength": NOT_NEGATIVE,
    }

    dim: int = 128
    num_keys: int = 5
    loss: Literal["jcl", "multi_key"] = "jcl"  # multi_key: the mean of the keys' own losses
    strength: float = 4.0  # lambda, the weight of the covariance
    ramp: bool = True  # strength grows epoch by epoch up to its value
    queue_size: int = 65536
    temperature: float = 0.2
    momentum: float = 0.999
    bn: BatchNormMode = "shuffle"

    def create(self, backbone: Backbone, data: DataInfo) -> "JCL":
        """The method around this backbone."""
        return JCL(backbone, self)

    def validate_batch_size(self, batch_size: int) -> None:
        """A queue must hold at least one batch."""
        check_queue_holds_batch(self.queue_size, batch_size)

    @property
    def num_views(self) -> int:
        """One query and its keys."""
        return 1 + self.num_keys

    def chance_loss(self, batch_size: int) -> float:
        """Guessing among the positive and the queue."""
        return math.log(1 + self.queue_size)


class JCL(Method):
    """Student = backbone + projector; its moving average makes the keys, the queue their means."""

    def __init__(self, backbone: Backbone, config: JCLConfig) -> None:
        super().__init__()
        head = mlp(backbone.dim, backbone.dim, config.dim, norm=False, bias=True, last_bias=True)
        self.config = config
        self.student = Encoder(backbone, head)
        self.teacher = Teacher(self.student, num_keys=config.num_keys)
        self.queue = Queue(config.queue_size, config.dim)

    def forward(self, views: Views, at: Moment) -> Step:
        """One query against the distribution of its keys."""
        c = self.config
        h, q = self.student(views[0])
        crops = torch.cat(views[1:])  # [M N, ...]
        _, k = self.teacher(crops, shuffle_order(c.bn, at, crops, c.num_keys))
        keys = F.normalize(k, dim=1).unflatten(0, (c.num_keys, -1))  # [M, N, D]
        strength = c.strength * at.epochs_begun if c.ramp else c.strength
        contrast = partial(jcl, strength=strength) if c.loss == "jcl" else queue_info_nce
        loss = contrast(q, keys, self.queue.read(), temperature=c.temperature)
        return Step(loss=loss, features=h, update={"keys": keys.mean(0)})

    def after_step(self, at: Moment, step: Step) -> None:
        """Let the teacher follow the student, and push the mean of each image's keys."""
        self.teacher.follow(self.student, self.config.momentum, skipped=step.skipped)
        self.queue.push(step.update["keys"], skipped=step.skipped)
