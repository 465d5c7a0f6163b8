"""NNCLR (Dwibedi et al. 2021, arXiv:2104.14548), section 3.2.

A view's prediction is not held against the other view, but against its nearest past neighbor.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from selfsight.losses.contrastive import neighbor_info_nce
from selfsight.losses.dtype import unit
from selfsight.methods import base
from selfsight.methods.base import DataFacts, Method, MethodConfig, Moment, Step, Views
from selfsight.nn import Backbone, Encoder, Queue, Teacher, mlp
from selfsight.nn.heads import patch_heads
from selfsight.nn.patch_student import OFF, Patches, see


@dataclass(frozen=True, kw_only=True)
class NNCLRConfig(MethodConfig):
    """Defaults: ResNet-50 on ImageNet, 1000 epochs."""

    info_nce: ClassVar[bool] = True

    dim: int = 256
    hidden_dim: int = 2048
    predictor_dim: int = 4096
    queue_size: int = 98304
    temperature: float = 0.1
    heads: Literal["nnclr", "fast_moco"] = "nnclr"
    patches: Patches = OFF
    teacher_momentum: float | None = None  # of one that looks neighbors up, as in Fast-MoCo

    def make(self, backbone: Backbone, data: DataFacts) -> "NNCLR":
        """The method around this backbone."""
        return NNCLR(backbone, self)

    def refuse(self, *, batch_size: int) -> None:
        """A queue must hold at least one batch."""
        base.refuse_short(self.queue_size, batch_size)

    def refuse_views(self, sizes: tuple[int, ...]) -> None:
        """Views must divide into patches."""
        self.patches.refuse(sizes)

    def chance_loss(self, batch_size: int) -> float:
        """A guess among the batch."""
        return math.log(batch_size)


class NNCLR(Method):
    """One network, a predictor, and a queue of past embeddings of the first view."""

    def __init__(self, backbone: Backbone, config: NNCLRConfig) -> None:
        super().__init__()
        config.patches.check_backbone(backbone)
        dim, hidden, wide = config.dim, config.hidden_dim, config.predictor_dim
        projector = mlp(backbone.dim, hidden, hidden, dim, last_norm="both")
        predictor = mlp(dim, wide, dim, last_bias=True)
        if config.heads == "fast_moco":
            projector, predictor = patch_heads(backbone.dim, dim, wide)
        self.config, self.predictor = config, predictor
        self.student = Encoder(backbone, projector)
        self.queue = Queue(config.queue_size, dim)
        if config.teacher_momentum is not None:
            self.teacher = Teacher(self.student)

    def forward(self, views: Views, at: Moment) -> Step:
        """Each view's neighbor picks the other view's prediction among the batch's."""
        x1, x2 = views
        t, net, teacher = self.config.temperature, self.student, getattr(self, "teacher", None)
        h1, z1, p1 = see(self.config.patches, net, self.predictor, x1, at, teacher=teacher)
        _, z2, p2 = see(self.config.patches, net, self.predictor, x2, at, turn=1, teacher=teacher)
        first = neighbor_info_nce(self.queue.nearest(z1), p2, temperature=t)
        second = neighbor_info_nce(self.queue.nearest(z2), p1, temperature=t)
        self.queue.push(unit(z1))  # only now, or each would be its own neighbor
        return Step(loss=(first + second) / 2, features=h1)

    def after_step(self, at: Moment) -> None:
        """Let the teacher follow the student, if there is one."""
        if self.config.teacher_momentum is not None:
            self.teacher.follow(self.student, self.config.teacher_momentum)
