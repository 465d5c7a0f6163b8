"""Barlow Twins (Zbontar et al. 2021, arXiv:2103.03230), algorithm 1."""

from dataclasses import dataclass
from typing import ClassVar

from selfsight.check_settings import NOT_NEGATIVE, Range
from selfsight.losses.decorrelation import barlow_twins
from selfsight.methods.base import DataInfo, Method, MethodConfig, Moment, Step, Views
from selfsight.nn import Backbone, Encoder, mlp


@dataclass(frozen=True, kw_only=True)
class BarlowTwinsConfig(MethodConfig):
    """Defaults: ResNet-50 on ImageNet (official code)."""

    ranges: ClassVar[dict[str, Range]] = {"redundancy": NOT_NEGATIVE}

    dim: int = 8192
    hidden_dim: int = 8192
    num_layers: int = 3  # of the projector
    redundancy: float = 0.0051  # weight of the off-diagonal terms

    def create(self, backbone: Backbone, data: DataInfo) -> "BarlowTwins":
        """The method around this backbone."""
        return BarlowTwins(backbone, self)


class BarlowTwins(Method):
    """One network; no negatives, no teacher, no predictor."""

    def __init__(self, backbone: Backbone, config: BarlowTwinsConfig) -> None:
        super().__init__()
        widths = [backbone.dim, *[config.hidden_dim] * (config.num_layers - 1), config.dim]
        self.config = config
        self.student = Encoder(backbone, mlp(*widths))

    def forward(self, views: Views, at: Moment) -> Step:
        """Pull the cross-correlation of the views over the global batch to the identity."""
        x1, x2 = views
        (h1, z1), (_, z2) = self.student.encode_views(x1, x2)
        loss = barlow_twins(z1, z2, redundancy=self.config.redundancy)
        return Step(loss=loss, features=h1)
