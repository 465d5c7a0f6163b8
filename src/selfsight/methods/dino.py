"""DINO (Caron et al. 2021, arXiv:2104.14294), algorithm 1.

The student predicts which of K outputs its own moving average chooses for another crop. Centering
and a low temperature keep the teacher from choosing one output, or all equally, for every image.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from selfsight import dist
from selfsight.check_settings import BELOW_ONE, COUNT_OR_NONE, POSITIVE, WIDTH, Range
from selfsight.losses.clustering import centered_codes, swapped_prediction
from selfsight.methods.base import DataInfo, Method, Moment, MultiCropConfig, Step, Views
from selfsight.nn import Backbone, Encoder, Teacher
from selfsight.nn.heads import DistillationHead
from selfsight.optim.schedules import Number, cosine, linear


@dataclass(frozen=True, kw_only=True)
class DINOConfig(MultiCropConfig):
    """Defaults: those of the official code (main_dino.py)."""

    ranges: ClassVar[dict[str, Range]] = {
        "out_dim": WIDTH,
        "student_temperature": POSITIVE,
        "teacher_temperature": POSITIVE,
        "teacher_temperature_start": POSITIVE,
        "temperature_epochs": COUNT_OR_NONE,
        "center_momentum": BELOW_ONE,
        "freeze_epochs": COUNT_OR_NONE,
    }

    dim: int = 256  # of the unit vector before the last layer
    hidden_dim: int = 2048
    num_layers: int = 3  # of the head, before the last one
    head_norm: bool = False  # batch norm in the head
    out_dim: int = 65536  # K
    free_scale: bool = (
        False  # train the lengths of the last layer's weights; else logits are cosines
    )
    num_small: int = 8  # small views beside the two large ones
    student_temperature: float = 0.1
    teacher_temperature_start: float = 0.04  # rises to teacher_temperature
    teacher_temperature: float = 0.04
    temperature_epochs: int = 0  # during which it rises; the paper: to 0.07 in 30
    center_momentum: float = 0.9
    momentum: float = 0.996  # rises to momentum_end along a cosine
    momentum_end: float = 1.0
    freeze_epochs: int = 1  # during which the last layer does not learn

    def create(self, backbone: Backbone, data: DataInfo) -> "DINO":
        """The method around this backbone."""
        return DINO(backbone, self)

    def chance_loss(self, batch_size: int) -> float:
        """Guessing among the outputs."""
        return math.log(self.out_dim)

    def temperature_at(self, epoch: Float[Tensor, ""]) -> Number:
        """The teacher's temperature: constant in an epoch, final from the last one of its rise."""
        if not self.temperature_epochs:
            return self.teacher_temperature
        progress = epoch / max(self.temperature_epochs - 1, 1)
        return linear(progress, self.teacher_temperature_start, self.teacher_temperature)


class DINO(Method):
    """Student, its moving average as the teacher, and the mean of the teacher's logits."""

    center: Float[Tensor, " k"]

    def __init__(self, backbone: Backbone, config: DINOConfig) -> None:
        super().__init__()
        c, widths = config, [config.hidden_dim] * (config.num_layers - 1)
        head = DistillationHead(
            backbone.dim, *widths, c.dim, c.out_dim, norm=c.head_norm, free_scale=c.free_scale
        )
        self.config, self.student = config, Encoder(backbone, head)
        self.teacher = Teacher(self.student)
        self.last_layer = ["student.projector.last.weight"]
        self.last_layer += ["student.projector.scale"] * config.free_scale
        self.register_buffer("center", torch.zeros(config.out_dim))

    def forward(self, views: Views, at: Moment) -> Step:
        """Every view predicts what the teacher chooses for the large ones."""
        c, x1 = self.config, views[0]
        epoch = at.step_on(x1.device) // at.steps_per_epoch
        h = self.student.crop_features(views)  # [VN, D]
        is_frozen = epoch < c.freeze_epochs
        s = self.student.projector(h, frozen=is_frozen)
        s = s.unflatten(0, (len(views), -1))  # [V, N, K]
        _, t = self.teacher(torch.cat(views[:2]))
        t = t.unflatten(0, (2, -1))  # [2, N, K]
        targets = centered_codes(t, self.center, temperature=c.temperature_at(epoch.double()))
        loss = swapped_prediction(s, targets, temperature=c.student_temperature)
        mean = dist.mean(t.mean((0, 1)))
        frozen = dict.fromkeys(self.last_layer, is_frozen)
        return Step(loss=loss, features=h[: len(x1)], update={"mean": mean}, frozen=frozen)

    def after_step(self, at: Moment, step: Step) -> None:
        """Let the teacher follow the student, and the center the teacher's logits."""
        momentum = cosine(at.progress, self.config.momentum, self.config.momentum_end)
        self.teacher.follow(self.student, momentum, skipped=step.skipped)
        center = self.center.lerp(step.update["mean"], 1 - self.config.center_momentum)
        if step.skipped is not None:
            center = torch.where(step.skipped > 0, self.center, center)
        self.center.copy_(center)
