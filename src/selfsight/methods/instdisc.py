"""InstDisc (Wu et al. 2018, arXiv:1805.01978), section 3: every image is a class of its own."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from selfsight.errors import UserError
from selfsight.losses import nonparametric
from selfsight.methods import base
from selfsight.methods.base import DataFacts, Method, MethodConfig, Moment, Step, Views
from selfsight.nn import Backbone, Encoder, Memory, mlp


@dataclass(frozen=True, kw_only=True)
class InstDiscConfig(MethodConfig):
    """Defaults: ResNet-50 on ImageNet, released code. The paper has proximal_lambda=30."""

    row_each: ClassVar[bool] = True
    dim: int = 128
    loss: Literal["nce", "softmax"] = "nce"
    num_noise: int = 4096  # draws of NCE for each image, with replacement
    temperature: float = 0.07
    memory_momentum: float = 0.5  # 0: the memory holds the newest embedding
    proximal_lambda: float = 0.0

    def make(self, backbone: Backbone, data: DataFacts) -> "InstDisc":
        """The method around this backbone, with a memory for these images."""
        return InstDisc(backbone, self, data.num_images)

    def refuse(self, *, batch_size: int) -> None:
        """NCE needs noise, and a memory must move."""
        base.positive(num_noise=self.num_noise, temperature=self.temperature)
        base.share(memory_momentum=self.memory_momentum)
        if self.proximal_lambda < 0:
            raise UserError(f"method.proximal_lambda is {self.proximal_lambda}; use 0 for none.")

    @property
    def num_views(self) -> int:
        """One: the other is in the memory."""
        return 1

    def chance_loss(self, batch_size: int) -> float | None:
        """NCE that tells own rows from noise by their number alone; a softmax's is the data's."""
        m = self.num_noise
        return math.log1p(m) + m * math.log1p(1 / m) if self.loss == "nce" else None


class InstDisc(Method):
    """One network; a memory of each image's past embeddings in place of the classes' weights."""

    normalizer: Tensor  # Z, of the first batch for good; 0 until then

    def __init__(self, backbone: Backbone, config: InstDiscConfig, num_images: int) -> None:
        super().__init__()
        self.config, self.num_images = config, num_images
        self.student = Encoder(backbone, mlp(backbone.dim, config.dim, last_bias=True))
        self.memory = Memory(num_images, config.dim)
        self.register_buffer("normalizer", torch.zeros(()))

    def forward(self, views: Views, at: Moment) -> Step:
        """Which image is it? Its row of the memory, among all rows or against noise."""
        c, t, count = self.config, self.config.temperature, self.num_images
        h, v = self.student(views[0])
        if c.loss == "softmax":
            loss = nonparametric.softmax(v, self.memory.read(), own=at.index, temperature=t)
        else:
            noise = (at.uniform("noise", c.num_noise) * count).long()
            rows = self.memory.read(torch.cat([at.index[:, None], noise], 1))  # [N, 1 + m, D]
            logits = nonparametric.logits(v, rows, temperature=t)
            estimate = nonparametric.partition(logits, num_images=count)
            self.normalizer.copy_(torch.where(self.normalizer > 0, self.normalizer, estimate))
            loss = nonparametric.nce(logits, self.normalizer, num_images=count)
        if c.proximal_lambda > 0:
            way = nonparametric.proximal(v, self.memory.read(at.index))
            loss = loss + c.proximal_lambda * way
        self.memory.update(at.index, v, c.memory_momentum)
        return Step(loss=loss, features=h)
