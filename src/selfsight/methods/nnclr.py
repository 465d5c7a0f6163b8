"""NNCLR (Dwibedi et al. 2021, arXiv:2104.14548), section 3.2.

A view's nearest neighbor among past embeddings is the positive of the other view.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from selfsight.check_settings import SHARE, Range
from selfsight.losses.contrastive import neighbor_info_nce
from selfsight.losses.float32_losses import unit
from selfsight.methods.base import (
    DataInfo,
    Method,
    MethodConfig,
    Moment,
    Step,
    Views,
    check_queue_holds_batch,
)
from selfsight.nn import Backbone, Queue, Teacher, mlp
from selfsight.nn.combinatorial_patches import OFF, Patches, PatchStudent
from selfsight.nn.heads import fast_moco_heads


@dataclass(frozen=True, kw_only=True)
class NNCLRConfig(MethodConfig):
    """Defaults: ResNet-50 on ImageNet, 1000 epochs."""

    info_nce: ClassVar[bool] = True
    ranges: ClassVar[dict[str, Range]] = {"teacher_momentum": SHARE}

    dim: int = 256
    hidden_dim: int = 2048
    predictor_dim: int = 4096
    queue_size: int = 98304
    temperature: float = 0.1
    heads: Literal["nnclr", "fast_moco"] = "nnclr"
    patches: Patches = OFF
    teacher_momentum: float | None = None  # of a teacher that gives the queries and the queue

    def create(self, backbone: Backbone, data: DataInfo) -> "NNCLR":
        """The method around this backbone."""
        return NNCLR(backbone, self)

    def validate_batch_size(self, batch_size: int) -> None:
        """A queue must hold at least one batch."""
        check_queue_holds_batch(self.queue_size, batch_size)

    def validate(self) -> None:
        """Patches must be combined before the predictor."""
        MethodConfig.validate(self)
        self.patches.validate_stage()

    def validate_views(self, sizes: tuple[int, ...]) -> None:
        """Views must divide into patches."""
        self.patches.validate_views(sizes)

    def chance_loss(self, batch_size: int) -> float:
        """Guessing among the batch."""
        return math.log(batch_size)


@torch.no_grad()
def find_nearest(z: Float[Tensor, "n d"], keys: Float[Tensor, "k d"]) -> Float[Tensor, "n d"]:
    """The key most similar to each row; keys are assumed to be unit vectors."""
    with torch.autocast(z.device.type, enabled=False):  # rounding would change neighbors
        return keys[(z.to(keys.dtype) @ keys.T).argmax(dim=1)]


class NNCLR(Method):
    """One network, a predictor, and a queue of past embeddings of the first view."""

    def __init__(self, backbone: Backbone, config: NNCLRConfig) -> None:
        super().__init__()
        dim, hidden, wide = config.dim, config.hidden_dim, config.predictor_dim
        projector = mlp(backbone.dim, hidden, hidden, dim, last_norm="both")
        predictor = mlp(dim, wide, dim, last_bias=True)
        if config.heads == "fast_moco":
            projector, predictor = fast_moco_heads(
                backbone.dim, dim, hidden_dim=dim, predictor_dim=wide
            )
        self.config = config
        self.student = PatchStudent(backbone, projector, config.patches)
        self.predictor = predictor
        self.queue = Queue(config.queue_size, dim)
        if config.teacher_momentum is not None:
            self.teacher = Teacher(self.student.whole_views())

    def forward(self, views: Views, at: Moment) -> Step:
        """Each view's neighbor picks the other view's prediction among the batch's."""
        x1, x2 = views
        t = self.config.temperature
        h1, z1 = self.student(x1, at, view=0)
        _, z2 = self.student(x2, at, view=1)
        p1, p2 = self.predictor(z1), self.predictor(z2)
        if self.config.teacher_momentum is not None:  # it looks the neighbors up
            (h1_teacher, z1), (_, z2) = self.teacher(x1), self.teacher(x2)
            h1 = h1_teacher if self.config.patches.on else h1
        elif self.config.patches.on:  # whole views look them up: needs a second forward pass
            with torch.no_grad():
                (h1, z1), (_, z2) = self.student(x1), self.student(x2)
        nn1, nn2 = find_nearest(z1, self.queue.keys), find_nearest(z2, self.queue.keys)
        loss = neighbor_info_nce(nn1, p2, temperature=t) + neighbor_info_nce(nn2, p1, temperature=t)
        return Step(loss=loss / 2, features=h1, update={"keys": unit(z1).detach()})

    def after_step(self, at: Moment, step: Step) -> None:
        """Push the embeddings of the first view, and let the teacher follow, if there is one."""
        self.queue.push(step.update["keys"], skipped=step.skipped)
        if self.config.teacher_momentum is not None:
            self.teacher.follow(self.student, self.config.teacher_momentum, skipped=step.skipped)
