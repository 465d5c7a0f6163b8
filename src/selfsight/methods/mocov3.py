"""MoCo v3 (Chen, Xie, He 2021, arXiv:2104.02057), algorithm 1.

Two views each predict the other's teacher embedding among those of the whole global batch.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

from selfsight.losses.contrastive import info_nce
from selfsight.methods.base import DataInfo, Method, MethodConfig, Moment, Step, Views
from selfsight.nn import Backbone, Encoder, Teacher, mlp
from selfsight.optim.schedules import cosine


@dataclass(frozen=True, kw_only=True)
class MoCoV3Config(MethodConfig):
    """Defaults: ResNet-50, 100 and 300 epochs (official CONFIG.md).

    For ViT: head="vit", temperature=0.2.
    """

    info_nce: ClassVar[bool] = True

    dim: int = 256
    hidden_dim: int = 4096
    head: Literal["resnet", "vit"] = "resnet"  # vit: a third layer, and a norm after the predictor
    head_norm: bool = True  # False: no batch norm in the heads; with a ViT there is then none
    temperature: float = 1.0
    momentum: float = 0.99  # goes to momentum_end along a cosine
    momentum_end: float = 1.0  # equal to momentum: constant
    predictor: bool = True  # False: the embeddings are the queries
    copy_init: bool = True  # False: the teacher starts from other random weights

    def create(self, backbone: Backbone, data: DataInfo) -> "MoCoV3":
        """The method around this backbone."""
        return MoCoV3(backbone, self)

    @property
    def info_nce_scale(self) -> float:
        """Two directions, each scaled by 2 x temperature as in the paper."""
        return 4 * self.temperature

    def chance_loss(self, batch_size: int) -> float:
        """Two directions, each a guess among the batch, scaled as the paper scales."""
        return self.info_nce_scale * math.log(batch_size)


class MoCoV3(Method):
    """Student = backbone + projector + predictor; teacher = moving average of the first two."""

    def __init__(self, backbone: Backbone, config: MoCoV3Config) -> None:
        super().__init__()
        dim, hidden, norm = config.dim, config.hidden_dim, config.head_norm
        vit = config.head == "vit"
        last: Literal["none"] | None = "none" if norm else None  # without learned parameters
        widths = [backbone.dim, *[hidden] * (2 if vit else 1), dim]
        self.config = config
        self.student = Encoder(backbone, mlp(*widths, norm=norm, last_norm=last))
        predictor = mlp(dim, hidden, dim, norm=norm, last_norm=last if vit else None)
        self.predictor = predictor if config.predictor else nn.Identity()
        self.teacher = Teacher(self.student, copy_weights=config.copy_init)
        if not config.copy_init:  # the reference moves the teacher before its first use
            self.teacher.follow(self.student, config.momentum)

    def forward(self, views: Views, at: Moment) -> Step:
        """Symmetric contrast between predicted and teacher embeddings."""
        x1, x2 = views
        t = self.config.temperature

        (h1, z1), (_, z2) = self.student.encode_views(x1, x2)
        q1, q2 = self.predictor(z1), self.predictor(z2)
        _, k1 = self.teacher(x1)
        _, k2 = self.teacher(x2)

        loss = info_nce(q1, k2, temperature=t) + info_nce(q2, k1, temperature=t)
        return Step(loss=2 * t * loss, features=h1)

    def after_step(self, at: Moment, step: Step) -> None:
        """Let the teacher follow the student."""
        momentum = cosine(at.next_progress, self.config.momentum, self.config.momentum_end)
        self.teacher.follow(self.student, momentum, skipped=step.skipped)
