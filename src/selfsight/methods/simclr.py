"""SimCLR (Chen et al. 2020, arXiv:2002.05709), algorithm 1."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from selfsight import dist
from selfsight.errors import UserError
from selfsight.losses.contrastive import nt_xent
from selfsight.methods.base import DataInfo, Method, MethodConfig, Moment, Step, Views
from selfsight.nn import Backbone, Encoder, mlp


@dataclass(frozen=True, kw_only=True)
class SimCLRConfig(MethodConfig):
    """Defaults: ResNet-50 on ImageNet, two-layer head as in the official code."""

    info_nce: ClassVar[bool] = True

    dim: int = 128
    hidden_dim: int = 2048
    num_layers: int = 2  # of the projector; 3 is SimCLR v2
    head_norm: bool = True  # False: the paper's text, linear layers with biases and no norm
    temperature: float = 0.1
    negatives: Literal["both", "cross"] = "both"  # both views of others, or the opposite one
    num_negatives: int | None = None  # of each query, sampled for it alone; None: all
    alpha: float | None = None  # EqCo: how many negatives they stand for

    def create(self, backbone: Backbone, data: DataInfo) -> "SimCLR":
        """The method around this backbone."""
        return SimCLR(backbone, self)

    def available_negatives(self, batch_size: int) -> int:
        """How many negatives a batch has for each query."""
        return (batch_size - 1) * (2 if self.negatives == "both" else 1)

    def validate_batch_size(self, batch_size: int) -> None:
        """There must be as many negatives as requested."""
        if (self.num_negatives or 0) > (most := self.available_negatives(batch_size)):
            raise UserError(
                f"method.num_negatives is {self.num_negatives}, but a batch of {batch_size} has "
                f"{most} for each query. Ask for {most} or fewer, or raise batch_size."
            )

    def chance_loss(self, batch_size: int) -> float:
        """Guessing among the positive and the negatives, or EqCo's alpha of them."""
        return math.log(
            1 + (self.alpha or self.num_negatives or self.available_negatives(batch_size))
        )


class SimCLR(Method):
    """One network; the other images of the global batch are the negatives."""

    def __init__(self, backbone: Backbone, config: SimCLRConfig) -> None:
        super().__init__()
        widths = [backbone.dim, *[config.hidden_dim] * (config.num_layers - 1), config.dim]
        head = (
            mlp(*widths, last_norm="scale")
            if config.head_norm
            else mlp(*widths, norm=False, bias=True, last_bias=True)
        )
        self.config = config
        self.student = Encoder(backbone, head)

    def forward(self, views: Views, at: Moment) -> Step:
        """Each embedding picks its partner among all others."""
        x1, x2 = views
        c = self.config
        (h1, z1), (_, z2) = self.student.encode_views(x1, x2)
        negatives = None
        if c.num_negatives is not None:
            among = c.available_negatives(len(x1) * dist.world_size())
            sampled = [
                at.choices(f"negatives {v}", x1, c.num_negatives, among=among) for v in (1, 2)
            ]
            negatives = torch.cat(sampled)  # [2N, K]
        loss = nt_xent(
            z1,
            z2,
            temperature=c.temperature,
            negatives=negatives,
            alpha=c.alpha,
            cross=c.negatives == "cross",
        )
        return Step(loss=loss, features=h1)
