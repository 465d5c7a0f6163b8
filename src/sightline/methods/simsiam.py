"""SimSiam (Chen, He 2020, arXiv:2011.10566), algorithm 1."""

from dataclasses import dataclass

from sightline.losses.predictive import negative_cosine
from sightline.methods.base import DataFacts, Method, MethodConfig, Moment, Step, Views
from sightline.nn import Backbone, Encoder, mlp


@dataclass(frozen=True, kw_only=True)
class SimSiamConfig(MethodConfig):
    """Defaults: ResNet-50 on ImageNet."""

    dim: int = 2048
    predictor_dim: int = 512
    num_layers: int = 3  # of the projector; 2 on CIFAR-10

    def make(self, backbone: Backbone, data: DataFacts) -> "SimSiam":
        """The method around this backbone."""
        return SimSiam(backbone, self)


class SimSiam(Method):
    """One network, a predictor, and a stop-gradient."""

    def __init__(self, backbone: Backbone, config: SimSiamConfig) -> None:
        super().__init__()
        dim = config.dim
        self.config = config
        widths = [backbone.dim, *[dim] * config.num_layers]
        # The reference freezes the last layer's bias at random; the norm after it takes it away.
        self.student = Encoder(backbone, mlp(*widths, last_norm="none"))
        self.predictor = mlp(dim, config.predictor_dim, dim, last_bias=True)

    def forward(self, views: Views, at: Moment) -> Step:
        """Each view predicts the other view's embedding, which gets no gradient."""
        x1, x2 = views
        h1, z1 = self.student(x1)
        _, z2 = self.student(x2)
        p1, p2 = self.predictor(z1), self.predictor(z2)
        loss = (negative_cosine(p1, z2) + negative_cosine(p2, z1)) / 2
        return Step(loss=loss, features=h1)
