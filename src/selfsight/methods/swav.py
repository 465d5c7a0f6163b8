"""SwAV (Caron et al. 2020, arXiv:2006.09882), algorithm 1.

Two large views are given codes, soft clusters of equal size, which all other views predict.
"""

import math
from dataclasses import dataclass
from itertools import groupby

import torch

from selfsight import dist
from selfsight.losses.clustering import codes, prototype_scores, refuse_few, swapped_prediction
from selfsight.methods import base
from selfsight.methods.base import DataFacts, Method, MethodConfig, Moment, Step, Views
from selfsight.nn import Backbone, Encoder, mlp
from selfsight.nn.batch_norm import refuse_groups
from selfsight.nn.prototypes import Prototypes


@dataclass(frozen=True, kw_only=True)
class SwAVConfig(MethodConfig):
    """Defaults: ResNet-50, batch 4096 with multi-crop (official scripts)."""

    dim: int = 128
    hidden_dim: int = 2048
    num_prototypes: int = 3000
    num_small: int = 6  # small views beside the two large ones
    temperature: float = 0.1
    queue_size: int = 0  # past embeddings that are given codes too; 3840 at batch 256
    queue_epoch: int = 15  # filled from here on, used when full
    freeze_steps: int = 313  # in which the prototypes do not move

    def make(self, backbone: Backbone, data: DataFacts) -> "SwAV":
        """The method around this backbone."""
        return SwAV(backbone, self)

    def refuse(self, *, batch_size: int) -> None:
        """Enough images for the prototypes, and norms over all of them."""
        refuse_few(self.num_prototypes, batch_size, self.queue_size)
        refuse_groups(self.bn)
        base.refuse_short(self.queue_size or batch_size, batch_size)

    @property
    def num_views(self) -> int:
        """Two large ones and the small ones."""
        return 2 + self.num_small

    def chance_loss(self, batch_size: int) -> float:
        """A guess among the prototypes."""
        return math.log(self.num_prototypes)


class SwAV(Method):
    """One network, and prototypes of length one."""

    def __init__(self, backbone: Backbone, config: SwAVConfig) -> None:
        super().__init__()
        head = mlp(backbone.dim, config.hidden_dim, config.dim, bias=True, last_bias=True)
        self.config, self.student = config, Encoder(backbone, head)
        self.prototypes = Prototypes(config.num_prototypes, config.dim, config.queue_size)

    def forward(self, views: Views, at: Moment) -> Step:
        """Every view predicts the codes of the large ones; one pass for each resolution."""
        c, x1 = self.config, views[0]
        sizes = [torch.cat(list(alike)) for _, alike in groupby(views, key=lambda x: x.shape[2])]
        h = torch.cat([self.student.backbone(x) for x in sizes])
        z = self.student.projector(h).unflatten(0, (len(views), -1))  # [V, N, D]
        scores = prototype_scores(z, self.prototypes(at.step < c.freeze_steps))  # [V, N, K]
        seen = (at.step - c.queue_epoch * at.steps_per_epoch) * len(x1) * dist.world_size()
        past = [prototype_scores(rows, self.prototypes.weight) for rows in self.prototypes.past()]
        pairs = zip(scores, past, strict=False)
        targets = torch.stack([codes(s, q, seen >= c.queue_size) for s, q in pairs])
        self.prototypes.remember(z)
        loss = swapped_prediction(scores, targets, temperature=c.temperature)
        return Step(loss=loss, features=h[: len(x1)])

    def after_step(self, at: Moment) -> None:
        """Prototypes go back to length one before the next forward."""
        self.prototypes.normalize()
