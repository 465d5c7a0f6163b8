"""SiMo (Zhu et al. 2020, arXiv:2010.01929), section 3: MoCo v2 with few negatives and no queue."""

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from torch import Tensor, nn

from selfsight import dist
from selfsight.losses.contrastive import info_nce
from selfsight.methods.base import DataInfo, Method, MethodConfig, Moment, Step, Views
from selfsight.nn import Backbone, Encoder, Teacher, mlp
from selfsight.nn.batch_norm import shuffle_order


@dataclass(frozen=True, kw_only=True)
class SiMoConfig(MethodConfig):
    """Defaults: ResNet-50 on ImageNet, K = alpha = 256."""

    has_keys: ClassVar[bool] = True
    info_nce: ClassVar[bool] = True

    dim: int = 128
    num_negatives: int = 256  # of each query; at most the other keys of the batch
    alpha: float | None = 256.0  # EqCo: how many negatives they stand for; None: no margin
    shared_negatives: bool = True  # the same for all queries of a step; False: sampled for each
    symmetric: bool = False  # both views are queries
    temperature: float = 0.2
    momentum: float = 0.999

    def create(self, backbone: Backbone, data: DataInfo) -> "SiMo":
        """The method around this backbone."""
        return SiMo(backbone, self)

    def chance_loss(self, batch_size: int) -> float:
        """Guessing among the positive and the negatives, or EqCo's alpha of them."""
        return math.log(1 + (self.alpha or min(self.num_negatives, batch_size - 1)))


class SiMo(Method):
    """Student = backbone + projector; its moving average makes all keys of the batch."""

    def __init__(self, backbone: Backbone, config: SiMoConfig) -> None:
        super().__init__()
        head = mlp(backbone.dim, backbone.dim, config.dim, last_norm="both")
        for layer in head:
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=0.01)
        self.config = config
        self.student = Encoder(backbone, head)
        self.teacher = Teacher(self.student)

    def forward(self, views: Views, at: Moment) -> Step:
        """Each query picks its key among K + 1; the keys get no gradient."""
        x1, x2 = views
        order = shuffle_order(self.config.bn, at, x2)
        contrast = partial(info_nce, temperature=self.config.temperature, alpha=self.config.alpha)
        h, q1 = self.student(x1)
        _, k2 = self.teacher(x2, order)
        loss = contrast(q1, k2, negatives=self.sample_negatives(at, "negatives", x1))
        if self.config.symmetric:
            _, q2 = self.student(x2)
            _, k1 = self.teacher(x1, order)
            negatives = self.sample_negatives(at, "negatives back", x1)
            loss = (loss + contrast(q2, k1, negatives=negatives)) / 2
        return Step(loss=loss, features=h)

    def sample_negatives(self, at: Moment, name: str, x: Tensor) -> Tensor | None:
        """Sample which other keys of the global batch are negatives; None for all of them."""
        count, others = self.config.num_negatives, len(x) * dist.world_size() - 1
        if count >= others:
            return None
        if self.config.shared_negatives:
            return at.permutation(name, others, x.device)[:count]
        return at.choices(name, x, count, among=others)

    def after_step(self, at: Moment, step: Step) -> None:
        """Let the teacher follow the student."""
        self.teacher.follow(self.student, self.config.momentum, skipped=step.skipped)
