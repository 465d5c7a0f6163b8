"""Fast-MoCo (Ci et al. 2022, arXiv:2207.08220), algorithm 1.

Averages of encoded patches of one view pick the teacher's embedding of the other, whole view.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from selfsight.losses.contrastive import info_nce
from selfsight.methods.base import DataFacts, Method, MethodConfig, Moment, Step, Views
from selfsight.nn import Backbone, Encoder, Teacher
from selfsight.nn.heads import patch_heads
from selfsight.nn.patch_student import SIX_PAIRS, Patches, predict, see


@dataclass(frozen=True, kw_only=True)
class FastMoCoConfig(MethodConfig):
    """Defaults: ResNet-50, 100 to 400 epochs (official code)."""

    info_nce: ClassVar[bool] = True

    dim: int = 2048
    predictor_dim: int = 512
    temperature: float = 1.0
    momentum: float = 0.99  # constant
    patches: Patches = SIX_PAIRS
    multicrop: bool = False  # a third view, predicted from but never a target
    copy_init: bool = True  # False: the teacher starts from weights of its own, as in their code

    def make(self, backbone: Backbone, data: DataFacts) -> "FastMoCo":
        """The method around this backbone."""
        return FastMoCo(backbone, self)

    def refuse_views(self, sizes: tuple[int, ...]) -> None:
        """Views must divide into patches."""
        self.patches.refuse(sizes)

    @property
    def num_views(self) -> int:
        """Two, and a third with `multicrop`."""
        return 3 if self.multicrop else 2

    def chance_loss(self, batch_size: int) -> float:
        """A guess among the batch."""
        return math.log(batch_size)


class FastMoCo(Method):
    """Student = backbone + projector + predictor; teacher = moving average of the first two."""

    features_of: ClassVar[Literal["student", "teacher"]] = "teacher"

    def __init__(self, backbone: Backbone, config: FastMoCoConfig) -> None:
        super().__init__()
        config.patches.check_backbone(backbone)
        projector, predictor = patch_heads(backbone.dim, config.dim, config.predictor_dim)
        self.config = config
        self.student = Encoder(backbone, projector)
        self.predictor = predictor
        self.teacher = Teacher(self.student, copied=config.copy_init)
        if not config.copy_init:  # the reference moves the teacher before its first use
            self.teacher.follow(self.student, config.momentum)

    def forward(self, views: Views, at: Moment) -> Step:
        """InfoNCE of every combination against whole views: the mean over all of them."""
        x1, x2, *others = views
        t, patches, net = self.config.temperature, self.config.patches, self.student
        h1, k1, q1 = see(patches, net, self.predictor, x1, at, turn=0, teacher=self.teacher)
        _, k2, q2 = see(patches, net, self.predictor, x2, at, turn=1, teacher=self.teacher)
        losses = [info_nce(q1, k2, temperature=t), info_nce(q2, k1, temperature=t)]
        for x3 in others:
            q3 = predict(patches, net, self.predictor, x3, at, turn=2)
            both = info_nce(q3, k1, temperature=t) + info_nce(q3, k2, temperature=t)
            losses.append(both / 2)
        return Step(loss=torch.stack(losses).mean(), features=h1)

    def after_step(self, at: Moment) -> None:
        """Let the teacher follow the student."""
        self.teacher.follow(self.student, self.config.momentum)
