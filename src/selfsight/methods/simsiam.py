"""SimSiam (Chen, He 2020, arXiv:2011.10566), algorithm 1.

With more than two views it is FastSiam (Pototzky, Sultan, Schmidt-Thieme 2022, GCPR): the target
of a view is the mean of the others.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from selfsight.losses.predictive import mean_of_others, negative_cosine
from selfsight.methods.base import DataInfo, Method, MethodConfig, Moment, Step, Views
from selfsight.nn import Backbone, mlp
from selfsight.nn.combinatorial_patches import OFF, Patches, PatchStudent
from selfsight.nn.heads import fast_moco_heads


@dataclass(frozen=True, kw_only=True)
class SimSiamConfig(MethodConfig):
    """Defaults: ResNet-50 on ImageNet. The released layout on ResNet-18: hidden_dim=512.

    For FastSiam: num_views=4.
    """

    num_views: int = 2
    dim: int = 2048
    hidden_dim: int | None = None  # of the projector; None: dim
    predictor_dim: int = 512
    num_layers: int = 3  # of the projector; 2 on CIFAR-10
    last_norm: Literal["both", "none"] = "none"  # learned parameters of the projector's last norm
    heads: Literal["simsiam", "fast_moco"] = "simsiam"
    patches: Patches = OFF  # predict from combined patches, as Fast-MoCo does

    def create(self, backbone: Backbone, data: DataInfo) -> "SimSiam":
        """The method around this backbone."""
        return SimSiam(backbone, self)

    def validate(self) -> None:
        """Patches must be combined before the predictor."""
        MethodConfig.validate(self)
        self.patches.validate_stage()

    def validate_views(self, sizes: tuple[int, ...]) -> None:
        """Views must divide into patches."""
        self.patches.validate_views(sizes)


class SimSiam(Method):
    """One network, a predictor, and a stop-gradient."""

    def __init__(self, backbone: Backbone, config: SimSiamConfig) -> None:
        super().__init__()
        dim, hidden = config.dim, config.hidden_dim or config.dim
        widths = [backbone.dim, *[hidden] * (config.num_layers - 1), dim]
        # The reference freezes the last layer's bias at random; the norm after it removes it.
        projector = mlp(*widths, last_norm=config.last_norm)
        predictor = mlp(dim, config.predictor_dim, dim, last_bias=True)
        if config.heads == "fast_moco":
            projector, predictor = fast_moco_heads(
                backbone.dim, dim, hidden_dim=hidden, predictor_dim=config.predictor_dim
            )
        self.config = config
        self.student = PatchStudent(backbone, projector, config.patches)
        self.predictor = predictor

    def forward(self, views: Views, at: Moment) -> Step:
        """Each view predicts the mean of the other views' embeddings, which gets no gradient."""
        h, z = zip(*(self.student(x, at, view=i) for i, x in enumerate(views)), strict=True)
        p = [self.predictor(z_i) for z_i in z]
        if self.config.patches.on:  # targets are whole views: needs a second forward pass
            with torch.no_grad():
                h, z = zip(*(self.student(x) for x in views), strict=True)
        targets = mean_of_others(torch.stack(z).detach())  # [V, N, D]
        losses = [negative_cosine(p_i, t_i) for p_i, t_i in zip(p, targets, strict=True)]
        return Step(loss=torch.stack(losses).mean(), features=h[0])
