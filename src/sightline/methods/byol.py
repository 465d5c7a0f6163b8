"""BYOL (Grill et al. 2020, arXiv:2006.07733), section 3.1."""

from dataclasses import dataclass

from torch import nn

from sightline.losses.predictive import regression
from sightline.methods.base import DataFacts, Method, MethodConfig, Moment, Step, Views
from sightline.nn import Backbone, Encoder, Teacher, mlp
from sightline.optim.schedules import cosine


@dataclass(frozen=True, kw_only=True)
class BYOLConfig(MethodConfig):
    """Defaults: ResNet-50, 100 and 300 epochs (official configuration)."""

    dim: int = 256
    hidden_dim: int = 4096
    momentum: float = 0.99  # rises to 1 along a cosine
    predictor: bool = True  # False collapses: kept to show what the predictor is for
    copy_init: bool = True  # False: the teacher starts from weights of its own

    def make(self, backbone: Backbone, data: DataFacts) -> "BYOL":
        """The method around this backbone."""
        return BYOL(backbone, self)


class BYOL(Method):
    """The student predicts its own moving average across views; there are no negatives."""

    def __init__(self, backbone: Backbone, config: BYOLConfig) -> None:
        super().__init__()
        dim, hidden = config.dim, config.hidden_dim
        self.config = config
        self.student = Encoder(backbone, mlp(backbone.dim, hidden, dim, bias=True))
        self.predictor = mlp(dim, hidden, dim, bias=True) if config.predictor else nn.Identity()
        self.teacher = Teacher(self.student, copied=config.copy_init)

    def forward(self, views: Views, at: Moment) -> Step:
        """Squared distance of unit vectors, prediction to teacher embedding, both ways."""
        x1, x2 = views
        h1, z1 = self.student(x1)
        _, z2 = self.student(x2)
        p1, p2 = self.predictor(z1), self.predictor(z2)
        _, t1 = self.teacher(x1)
        _, t2 = self.teacher(x2)
        return Step(loss=regression(p1, t2) + regression(p2, t1), features=h1)

    def after_step(self, at: Moment) -> None:
        """Let the teacher follow the student; the reference uses this step's momentum."""
        self.teacher.follow(self.student, cosine(at.progress, self.config.momentum, 1.0))
