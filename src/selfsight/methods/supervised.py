"""Supervised baseline (He et al. 2015, arXiv:1512.03385): cross-entropy on labels.

The baseline of the papers' tables, with the same loop, backbone and views.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from selfsight.check_settings import BELOW_ONE, Range
from selfsight.errors import UserError
from selfsight.methods.base import DataInfo, Method, MethodConfig, Moment, Step, Views
from selfsight.nn import Backbone, Encoder


@dataclass(frozen=True, kw_only=True)
class SupervisedConfig(MethodConfig):
    """Defaults: ResNet-50 on ImageNet, 90 epochs (torchvision's first recipe)."""

    needs_labels: ClassVar[bool] = True
    ranges: ClassVar[dict[str, Range]] = {"label_smoothing": BELOW_ONE}

    label_smoothing: float = 0.0

    def create(self, backbone: Backbone, data: DataInfo) -> "Supervised":
        """The method around this backbone."""
        return Supervised(backbone, self, data.num_classes)

    @property
    def num_views(self) -> int:
        """One view of each image."""
        return 1


class Supervised(Method):
    """A backbone and a linear classifier."""

    def __init__(self, backbone: Backbone, config: SupervisedConfig, num_classes: int) -> None:
        super().__init__()
        self.config, self.num_classes = config, num_classes
        # A backbone can be built without knowing the classes.
        self.student = Encoder(backbone, nn.Linear(backbone.dim, max(num_classes, 1)))

    def forward(self, views: Views, at: Moment) -> Step:
        """Cross-entropy of the class scores."""
        if at.labels is None or not self.num_classes:
            raise UserError(
                "The supervised baseline learns from labels: build it with "
                "DataInfo(num_classes=...) and call it with Moment(labels=...)."
            )
        h, scores = self.student(views[0])
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        smoothing = self.config.label_smoothing
        return Step(loss=F.cross_entropy(scores, at.labels, label_smoothing=smoothing), features=h)
