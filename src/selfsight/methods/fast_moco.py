"""Fast-MoCo (Ci et al. 2022, arXiv:2207.08220), algorithm 1.

Averages of encoded patches of one view pick the teacher's embedding of the whole other view.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from selfsight.losses.contrastive import info_nce
from selfsight.methods.base import DataInfo, Method, MethodConfig, Moment, Step, Views
from selfsight.nn import Backbone, Teacher
from selfsight.nn.combinatorial_patches import SIX_PAIRS, Patches, PatchStudent
from selfsight.nn.heads import fast_moco_heads


@dataclass(frozen=True, kw_only=True)
class FastMoCoConfig(MethodConfig):
    """Defaults: ResNet-50, 100 to 400 epochs (official code)."""

    info_nce: ClassVar[bool] = True

    dim: int = 2048
    hidden_dim: int | None = None  # of the projector; None: dim
    predictor_dim: int = 512
    temperature: float = 1.0
    momentum: float = 0.99  # constant
    patches: Patches = SIX_PAIRS
    multicrop: bool = False  # a third view, predicted from but never a target
    copy_init: bool = True  # False: the teacher starts from other random weights, as in their code

    def create(self, backbone: Backbone, data: DataInfo) -> "FastMoCo":
        """The method around this backbone."""
        return FastMoCo(backbone, self)

    def validate_views(self, sizes: tuple[int, ...]) -> None:
        """Views must divide into patches."""
        self.patches.validate_views(sizes)

    @property
    def num_views(self) -> int:
        """Two, and a third with `multicrop`."""
        return 3 if self.multicrop else 2

    def chance_loss(self, batch_size: int) -> float:
        """Guessing among the batch."""
        return math.log(batch_size)


class FastMoCo(Method):
    """Student = backbone + projector + predictor; teacher = moving average of the first two."""

    features_of: ClassVar[Literal["student", "teacher"]] = "teacher"
    student: PatchStudent

    def __init__(self, backbone: Backbone, config: FastMoCoConfig) -> None:
        super().__init__()
        hidden, predictor_dim = config.hidden_dim or config.dim, config.predictor_dim
        projector, self.predictor = fast_moco_heads(
            backbone.dim, config.dim, hidden_dim=hidden, predictor_dim=predictor_dim
        )
        self.config = config
        self.student = PatchStudent(backbone, projector, config.patches)
        self.teacher = Teacher(self.student.whole_views(), copy_weights=config.copy_init)
        if not config.copy_init:  # the reference moves the teacher before its first use
            self.teacher.follow(self.student, config.momentum)

    def forward(self, views: Views, at: Moment) -> Step:
        """InfoNCE of every combination against whole views: the mean over all of them."""
        x1, x2, *others = views
        t = self.config.temperature
        q1, q2 = self.predict(x1, at, view=0), self.predict(x2, at, view=1)
        h1, k1 = self.teacher(x1)
        _, k2 = self.teacher(x2)
        losses = [info_nce(q1, k2, temperature=t), info_nce(q2, k1, temperature=t)]
        for x3 in others:
            q3 = self.predict(x3, at, view=2)
            both = info_nce(q3, k1, temperature=t) + info_nce(q3, k2, temperature=t)
            losses.append(both / 2)
        return Step(loss=torch.stack(losses).mean(), features=h1)

    def predict(self, x: Tensor, at: Moment, *, view: int) -> Float[Tensor, "*blocks n d"]:
        """Divide a view into patches, encode each, combine, predict from every combination."""
        student = self.student
        if not self.config.patches.on:
            return self.predictor(student(x)[1])
        v = student.encode_patches(x, at, view=view)  # divide and encode: [m, N, D]
        v = student.combine(v, "final", view=view)  # [B, N, D]: the paper combines here
        z = student.combine(student.projector(v), "proj", view=view)
        return student.combine(self.predictor(z), "pred", view=view)

    def after_step(self, at: Moment, step: Step) -> None:
        """Let the teacher follow the student."""
        self.teacher.follow(self.student, self.config.momentum, skipped=step.skipped)
