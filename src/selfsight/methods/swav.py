"""SwAV (Caron et al. 2020, arXiv:2006.09882), algorithm 1.

Two large views are softly assigned to prototypes of equal share; all other views predict these
assignments.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from selfsight import dist
from selfsight.check_settings import COUNT_OR_NONE, WIDTH, Range
from selfsight.errors import UserError
from selfsight.losses.clustering import codes, prototype_scores, swapped_prediction
from selfsight.methods.base import (
    DataInfo,
    Method,
    Moment,
    MultiCropConfig,
    Step,
    Views,
    check_queue_holds_batch,
)
from selfsight.nn import Backbone, Encoder, mlp
from selfsight.nn.prototypes import Prototypes


@dataclass(frozen=True, kw_only=True)
class SwAVConfig(MultiCropConfig):
    """Defaults: ResNet-50, batch 4096 with multi-crop (official scripts)."""

    ranges: ClassVar[dict[str, Range]] = {
        "num_prototypes": WIDTH,
        **dict.fromkeys(("queue_size", "queue_epoch", "freeze_steps"), COUNT_OR_NONE),
    }

    dim: int = 128
    hidden_dim: int = 2048
    num_prototypes: int = 3000
    num_small: int = 6  # small views beside the two large ones
    temperature: float = 0.1
    queue_size: int = 0  # past embeddings that are assigned too; 3840 at batch 256
    queue_epoch: int = 15  # filled from here on, used when full
    freeze_steps: int = 313  # during which the prototypes do not move

    def create(self, backbone: Backbone, data: DataInfo) -> "SwAV":
        """The method around this backbone."""
        return SwAV(backbone, self)

    def validate_batch_size(self, batch_size: int) -> None:
        """Each prototype must be assigned an image, and a queue must hold at least one batch."""
        if batch_size + self.queue_size < self.num_prototypes:
            raise UserError(
                f"method.num_prototypes is {self.num_prototypes}, but only "
                f"{batch_size + self.queue_size} embeddings are assigned at a time (batch_size "
                f"{batch_size} and method.queue_size {self.queue_size}), and each prototype must "
                "get one. Use fewer prototypes, a larger batch or a longer queue."
            )
        check_queue_holds_batch(self.queue_size or batch_size, batch_size)

    def chance_loss(self, batch_size: int) -> float:
        """Guessing among the prototypes."""
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
        h = self.student.crop_features(views)  # [VN, D]
        z = self.student.projector(h).unflatten(0, (len(views), -1))  # [V, N, D]
        step = at.step_on(x1.device)
        frozen = step < c.freeze_steps
        scores = prototype_scores(z, self.prototypes(frozen))  # [V, N, K]
        steps_with_queue = step - c.queue_epoch * at.steps_per_epoch
        full = steps_with_queue * len(x1) * dist.world_size() >= c.queue_size
        past = self.prototypes.past_embeddings()
        past = [prototype_scores(q, self.prototypes.weight) for q in past]
        targets = torch.stack([codes(s, p, full) for s, p in zip(scores, past, strict=False)])
        loss = swapped_prediction(scores, targets, temperature=c.temperature)
        update = {"embeddings": z.detach()}
        frozen_now = {"prototypes.weight": frozen}
        return Step(loss=loss, features=h[: len(x1)], update=update, frozen=frozen_now)

    def after_step(self, at: Moment, step: Step) -> None:
        """Rescale the prototypes to length one, and push the embeddings of the large views."""
        self.prototypes.push(step.update["embeddings"], skipped=step.skipped)
        self.prototypes.normalize(skipped=step.skipped)
