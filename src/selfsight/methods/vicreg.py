"""VICReg (Bardes, Ponce, LeCun 2021, arXiv:2105.04906), algorithm 1."""

from dataclasses import dataclass
from typing import ClassVar

from selfsight.check_settings import NOT_NEGATIVE, Range
from selfsight.losses.decorrelation import vicreg
from selfsight.methods.base import DataInfo, Method, MethodConfig, Moment, Step, Views
from selfsight.nn import Backbone, Encoder, mlp


@dataclass(frozen=True, kw_only=True)
class VICRegConfig(MethodConfig):
    """Defaults: ResNet-50 on ImageNet (official code)."""

    ranges: ClassVar[dict[str, Range]] = dict.fromkeys(
        ("invariance", "variance", "covariance"), NOT_NEGATIVE
    )

    dim: int = 8192
    hidden_dim: int = 8192
    num_layers: int = 3  # of the projector, which the paper calls expander
    invariance: float = 25.0
    variance: float = 25.0
    covariance: float = 1.0

    def create(self, backbone: Backbone, data: DataInfo) -> "VICReg":
        """The method around this backbone."""
        return VICReg(backbone, self)


class VICReg(Method):
    """One network; no negatives, no teacher, no predictor."""

    def __init__(self, backbone: Backbone, config: VICRegConfig) -> None:
        super().__init__()
        widths = [backbone.dim, *[config.hidden_dim] * (config.num_layers - 1), config.dim]
        self.config = config
        self.student = Encoder(backbone, mlp(*widths, bias=True))

    def forward(self, views: Views, at: Moment) -> Step:
        """Invariance, variance and covariance terms; statistics are of the global batch."""
        x1, x2 = views
        (h1, z1), (_, z2) = self.student.encode_views(x1, x2)
        c = self.config
        loss = vicreg(z1, z2, invariance=c.invariance, variance=c.variance, covariance=c.covariance)
        return Step(loss=loss, features=h1)
