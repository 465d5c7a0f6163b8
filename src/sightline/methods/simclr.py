"""SimCLR (Chen et al. 2020, arXiv:2002.05709), algorithm 1."""

import math
from dataclasses import dataclass

from sightline.losses.contrastive import nt_xent
from sightline.methods.base import DataFacts, Method, MethodConfig, Moment, Step, Views
from sightline.nn import Backbone, Encoder, mlp


@dataclass(frozen=True, kw_only=True)
class SimCLRConfig(MethodConfig):
    """Defaults: ResNet-50 on ImageNet, two-layer head as in the official code."""

    dim: int = 128
    hidden_dim: int = 2048
    num_layers: int = 2  # of the projector; 3 is SimCLR v2
    head_norm: bool = True  # False: the paper's text, linear layers with biases and no norm
    temperature: float = 0.1

    def make(self, backbone: Backbone, data: DataFacts) -> "SimCLR":
        """The method around this backbone."""
        return SimCLR(backbone, self)

    def chance_loss(self, batch_size: int) -> float:
        """A guess among the other views of the batch."""
        return math.log(2 * batch_size - 1)


class SimCLR(Method):
    """One network; the other pictures of the global batch are the negatives."""

    def __init__(self, backbone: Backbone, config: SimCLRConfig) -> None:
        super().__init__()
        norm = config.head_norm
        widths = [backbone.dim, *[config.hidden_dim] * (config.num_layers - 1), config.dim]
        head = mlp(
            *widths,
            norm=norm,
            bias=not norm,
            last_bias=not norm,
            last_norm="scale" if norm else None,
        )
        self.config = config
        self.student = Encoder(backbone, head)

    def forward(self, views: Views, at: Moment) -> Step:
        """Each embedding picks its partner among all others."""
        x1, x2 = views
        h1, z1 = self.student(x1)
        _, z2 = self.student(x2)
        return Step(loss=nt_xent(z1, z2, temperature=self.config.temperature), features=h1)
