"""SimSiam (Chen, He 2020, arXiv:2011.10566), algorithm 1."""

from dataclasses import dataclass
from typing import Literal

from selfsight.losses.predictive import negative_cosine
from selfsight.methods.base import DataFacts, Method, MethodConfig, Moment, Step, Views
from selfsight.nn import Backbone, Encoder, mlp
from selfsight.nn.heads import patch_heads
from selfsight.nn.patch_student import OFF, Patches, see


@dataclass(frozen=True, kw_only=True)
class SimSiamConfig(MethodConfig):
    """Defaults: ResNet-50 on ImageNet."""

    dim: int = 2048
    predictor_dim: int = 512
    num_layers: int = 3  # of the projector; 2 on CIFAR-10
    heads: Literal["simsiam", "fast_moco"] = "simsiam"
    patches: Patches = OFF  # predict from combined patches, as Fast-MoCo does

    def make(self, backbone: Backbone, data: DataFacts) -> "SimSiam":
        """The method around this backbone."""
        return SimSiam(backbone, self)

    def refuse_views(self, sizes: tuple[int, ...]) -> None:
        """Views must divide into patches."""
        self.patches.refuse(sizes)


class SimSiam(Method):
    """One network, a predictor, and a stop-gradient."""

    def __init__(self, backbone: Backbone, config: SimSiamConfig) -> None:
        super().__init__()
        config.patches.check_backbone(backbone)
        dim = config.dim
        widths = [backbone.dim, *[dim] * config.num_layers]
        # The reference freezes the last layer's bias at random; the norm after it takes it away.
        projector = mlp(*widths, last_norm="none")
        predictor = mlp(dim, config.predictor_dim, dim, last_bias=True)
        if config.heads == "fast_moco":
            projector, predictor = patch_heads(backbone.dim, dim, config.predictor_dim)
        self.config = config
        self.student = Encoder(backbone, projector)
        self.predictor = predictor

    def forward(self, views: Views, at: Moment) -> Step:
        """Each view predicts the other view's embedding, which gets no gradient."""
        x1, x2 = views
        h1, z1, p1 = see(self.config.patches, self.student, self.predictor, x1, at, turn=0)
        _, z2, p2 = see(self.config.patches, self.student, self.predictor, x2, at, turn=1)
        loss = (negative_cosine(p1, z2) + negative_cosine(p2, z1)) / 2
        return Step(loss=loss, features=h1)
