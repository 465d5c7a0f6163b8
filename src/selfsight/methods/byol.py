"""BYOL (Grill et al. 2020, arXiv:2006.07733), section 3.1."""

from dataclasses import dataclass
from typing import Literal

from torch import nn

from selfsight.losses.predictive import regression
from selfsight.methods.base import DataInfo, Method, MethodConfig, Moment, Step, Views
from selfsight.nn import Backbone, Teacher, mlp
from selfsight.nn.combinatorial_patches import OFF, Patches, PatchStudent
from selfsight.nn.heads import fast_moco_heads
from selfsight.optim.schedules import cosine


@dataclass(frozen=True, kw_only=True)
class BYOLConfig(MethodConfig):
    """Defaults: ResNet-50, 100 and 300 epochs (official configuration)."""

    dim: int = 256
    hidden_dim: int = 4096
    momentum: float = 0.99  # rises to momentum_end along a cosine
    momentum_end: float = 1.0
    predictor: bool = True  # False collapses: kept to show what the predictor is for
    copy_init: bool = True  # False: the teacher starts from other random weights
    heads: Literal["byol", "fast_moco"] = "byol"
    patches: Patches = OFF  # predict from combined patches, as Fast-MoCo does

    def create(self, backbone: Backbone, data: DataInfo) -> "BYOL":
        """The method around this backbone."""
        return BYOL(backbone, self)

    def validate(self) -> None:
        """Patches must be combined before the predictor."""
        MethodConfig.validate(self)
        self.patches.validate_stage()

    def validate_views(self, sizes: tuple[int, ...]) -> None:
        """Views must divide into patches."""
        self.patches.validate_views(sizes)


class BYOL(Method):
    """The student predicts its own moving average across views; there are no negatives."""

    def __init__(self, backbone: Backbone, config: BYOLConfig) -> None:
        super().__init__()
        dim, hidden = config.dim, config.hidden_dim
        projector = mlp(backbone.dim, hidden, dim, bias=True)
        predictor = mlp(dim, hidden, dim, bias=True)
        if config.heads == "fast_moco":
            projector, predictor = fast_moco_heads(
                backbone.dim, dim, hidden_dim=dim, predictor_dim=hidden
            )
        self.config = config
        self.student = PatchStudent(backbone, projector, config.patches)
        self.predictor = predictor if config.predictor else nn.Identity()
        self.teacher = Teacher(self.student.whole_views(), copy_weights=config.copy_init)

    def forward(self, views: Views, at: Moment) -> Step:
        """Squared distance of unit vectors, prediction to teacher embedding, both ways."""
        x1, x2 = views
        h1, z1 = self.student(x1, at, view=0)
        _, z2 = self.student(x2, at, view=1)
        p1, p2 = self.predictor(z1), self.predictor(z2)
        h1_teacher, t1 = self.teacher(x1)
        _, t2 = self.teacher(x2)
        loss = regression(p1, t2) + regression(p2, t1)
        if self.config.patches.on:  # Fast-MoCo averages the directions, and only the teacher
            loss, h1 = loss / 2, h1_teacher  # encodes the whole view
        return Step(loss=loss, features=h1)

    def after_step(self, at: Moment, step: Step) -> None:
        """Let the teacher follow the student; the reference uses this step's momentum."""
        momentum = cosine(at.progress, self.config.momentum, self.config.momentum_end)
        self.teacher.follow(self.student, momentum, skipped=step.skipped)
