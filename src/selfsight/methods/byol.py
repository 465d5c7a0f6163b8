"""BYOL (Grill et al. 2020, arXiv:2006.07733), section 3.1."""

from dataclasses import dataclass
from typing import Literal

from torch import nn

from selfsight.losses.predictive import regression
from selfsight.methods.base import DataFacts, Method, MethodConfig, Moment, Step, Views
from selfsight.nn import Backbone, Encoder, Teacher, mlp
from selfsight.nn.heads import patch_heads
from selfsight.nn.patch_student import OFF, Patches, see
from selfsight.optim.schedules import cosine


@dataclass(frozen=True, kw_only=True)
class BYOLConfig(MethodConfig):
    """Defaults: ResNet-50, 100 and 300 epochs (official configuration)."""

    dim: int = 256
    hidden_dim: int = 4096
    momentum: float = 0.99  # rises to momentum_end along a cosine
    momentum_end: float = 1.0
    predictor: bool = True  # False collapses: kept to show what the predictor is for
    copy_init: bool = True  # False: the teacher starts from weights of its own
    heads: Literal["byol", "fast_moco"] = "byol"
    patches: Patches = OFF  # predict from combined patches, as Fast-MoCo does

    def make(self, backbone: Backbone, data: DataFacts) -> "BYOL":
        """The method around this backbone."""
        return BYOL(backbone, self)

    def refuse_views(self, sizes: tuple[int, ...]) -> None:
        """Views must divide into patches."""
        self.patches.refuse(sizes)


class BYOL(Method):
    """The student predicts its own moving average across views; there are no negatives."""

    def __init__(self, backbone: Backbone, config: BYOLConfig) -> None:
        super().__init__()
        config.patches.check_backbone(backbone)
        dim, hidden = config.dim, config.hidden_dim
        projector = mlp(backbone.dim, hidden, dim, bias=True)
        predictor = mlp(dim, hidden, dim, bias=True)
        if config.heads == "fast_moco":
            projector, predictor = patch_heads(backbone.dim, dim, hidden)
        self.config = config
        self.student = Encoder(backbone, projector)
        self.predictor = predictor if config.predictor else nn.Identity()
        self.teacher = Teacher(self.student, copied=config.copy_init)

    def forward(self, views: Views, at: Moment) -> Step:
        """Squared distance of unit vectors, prediction to teacher embedding, both ways."""
        x1, x2 = views
        patches, net = self.config.patches, self.student
        h1, t1, p1 = see(patches, net, self.predictor, x1, at, turn=0, teacher=self.teacher)
        _, t2, p2 = see(patches, net, self.predictor, x2, at, turn=1, teacher=self.teacher)
        loss = regression(p1, t2) + regression(p2, t1)
        # Fast-MoCo averages over combinations and directions; BYOL adds up the directions.
        return Step(loss=loss / 2 if patches.on else loss, features=h1)

    def after_step(self, at: Moment) -> None:
        """Let the teacher follow the student; the reference uses this step's momentum."""
        momentum = cosine(at.progress, self.config.momentum, self.config.momentum_end)
        self.teacher.follow(self.student, momentum)
