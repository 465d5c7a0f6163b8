"""MSBReg (Moon et al. 2022, arXiv:2207.03552): L = L_c + lambda_s L_s + lambda_b L_b."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from selfsight.check_settings import NOT_NEGATIVE, Range
from selfsight.errors import UserError
from selfsight.losses import msbreg_losses
from selfsight.methods.base import DataInfo, Method, MethodConfig, Moment, Step, Views
from selfsight.nn import Backbone, Encoder, Teacher, mlp
from selfsight.optim.schedules import cosine

CENTROIDS = {
    "leave_one_out": msbreg_losses.leave_one_out,
    "both": msbreg_losses.centroids,
    "repeat": msbreg_losses.repeated_pairs,
}


@dataclass(frozen=True, kw_only=True)
class MSBRegConfig(MethodConfig):
    """Defaults: ResNet-18 on ImageNet-100, the best lambdas of table 5 of the supplement."""

    ranges: ClassVar[dict[str, Range]] = dict.fromkeys(
        ("singular_weight", "brownian_weight", "uniformity_weight"), NOT_NEGATIVE
    )

    num_views: int = 4
    dim: int = 128
    hidden_dim: int = 512
    singular_weight: float = 0.004  # lambda_s
    brownian_weight: float = 0.5  # lambda_b
    uniformity_weight: float = 0.0  # the control of table 3
    centroid: Literal["leave_one_out", "both", "repeat"] = "leave_one_out"
    singular: Literal["a", "b", "c"] = "b"
    regularized: Literal["prediction", "projection"] = "prediction"  # input of L_s and L_b
    momentum: float = 0.99  # rises to 1 along a cosine

    def create(self, backbone: Backbone, data: DataInfo) -> "MSBReg":
        """The method around this backbone."""
        return MSBReg(backbone, self)

    def validate_batch_size(self, batch_size: int) -> None:
        """Repetition pairs views, so their number must be even."""
        if self.centroid == "repeat" and self.num_views % 2:
            rule = 'method.centroid "repeat" pairs views: num_views must be even'
            raise UserError(f"{rule}, and it is {self.num_views}.")


class MSBReg(Method):
    """BYOL's networks; each view is pulled to the centroid of the others, with two regularizers."""

    def __init__(self, backbone: Backbone, config: MSBRegConfig) -> None:
        super().__init__()
        dim, hidden = config.dim, config.hidden_dim
        self.config = config
        self.student = Encoder(backbone, mlp(backbone.dim, hidden, dim, bias=True))
        self.predictor = mlp(dim, hidden, dim, bias=True)
        self.teacher = Teacher(self.student)

    def forward(self, views: Views, at: Moment) -> Step:
        """The centroid loss, and the regularizers whose weight is not 0."""
        c = self.config
        h, z = zip(*self.student.encode_views(*views), strict=True)
        p = torch.stack([self.predictor(one) for one in z])  # [K, N, C]
        t = torch.stack([self.teacher(x)[1] for x in views])
        loss = CENTROIDS[c.centroid](p, t)
        e = p if c.regularized == "prediction" else torch.stack(z)
        if c.singular_weight:
            loss = loss + c.singular_weight * msbreg_losses.singular_values(e, form=c.singular)
        if c.brownian_weight:
            force = at.normal("brownian", views[0], c.dim)  # one per image, the same for all views
            loss = loss + c.brownian_weight * msbreg_losses.brownian(e, force)
        if c.uniformity_weight:
            loss = loss + c.uniformity_weight * msbreg_losses.uniformity(e)
        return Step(loss=loss, features=h[0])

    def after_step(self, at: Moment, step: Step) -> None:
        """Let the teacher follow the student, as BYOL's does."""
        momentum = cosine(at.progress, self.config.momentum, 1.0)
        self.teacher.follow(self.student, momentum, skipped=step.skipped)
