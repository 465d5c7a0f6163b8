"""InstDisc (Wu et al. 2018, arXiv:1805.01978), section 3: every image is a class of its own."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from selfsight.check_settings import BELOW_ONE, NOT_NEGATIVE, WIDTH, Range
from selfsight.errors import UserError
from selfsight.losses import instdisc_losses
from selfsight.methods.base import DataInfo, Method, MethodConfig, Moment, Step, Views
from selfsight.nn import Backbone, Encoder, MemoryBank, mlp


@dataclass(frozen=True, kw_only=True)
class InstDiscConfig(MethodConfig):
    """Defaults: ResNet-50 on ImageNet, released code. The paper has proximal_lambda=30."""

    needs_memory_bank: ClassVar[bool] = True
    ranges: ClassVar[dict[str, Range]] = {
        "num_noise": WIDTH,
        "memory_momentum": BELOW_ONE,
        "proximal_lambda": NOT_NEGATIVE,
    }

    dim: int = 128
    loss: Literal["nce", "softmax"] = "nce"
    num_noise: int = 4096  # draws of NCE for each image, with replacement
    temperature: float = 0.07
    memory_momentum: float = 0.5  # 0: the memory holds the newest embedding
    proximal_lambda: float = 0.0

    def create(self, backbone: Backbone, data: DataInfo) -> "InstDisc":
        """The method around this backbone, with a memory for these images."""
        return InstDisc(backbone, self, data.num_images)

    @property
    def num_views(self) -> int:
        """One view; it is compared with the image's embedding in the memory bank."""
        return 1

    def chance_loss(self, batch_size: int) -> float | None:
        """NCE of guessing; None for the softmax, whose chance loss depends on the data."""
        m = self.num_noise
        return math.log1p(m) + m * math.log1p(1 / m) if self.loss == "nce" else None


class InstDisc(Method):
    """One network; a memory bank of past embeddings replaces the weights of the classes."""

    normalizer: Tensor  # Z, fixed after the first batch; 0 until then

    def __init__(self, backbone: Backbone, config: InstDiscConfig, num_images: int) -> None:
        super().__init__()
        self.config, self.num_images = config, num_images
        self.student = Encoder(backbone, mlp(backbone.dim, config.dim, last_bias=True))
        self.memory_bank = MemoryBank(num_images, config.dim)
        self.register_buffer("normalizer", torch.zeros(()))

    def forward(self, views: Views, at: Moment) -> Step:
        """Classify each image: pick its row of the memory bank among all rows, or against noise."""
        c, t, count, index = self.config, self.config.temperature, self.num_images, at.index
        if index is None or not count:
            raise UserError(
                "InstDisc stores one embedding per image: build it with DataInfo(num_images=...) "
                "and call it with Moment(index=...), the positions of the images in the data."
            )
        h, v = self.student(views[0])
        update = {"embeddings": v.detach()}
        if c.loss == "softmax":
            loss = instdisc_losses.softmax(v, self.memory_bank.read(), own=index, temperature=t)
        else:
            noise = (at.uniform("noise", v, c.num_noise) * count).long()
            rows = self.memory_bank.read(torch.cat([index[:, None], noise], 1))  # [N, 1 + m, D]
            logits = instdisc_losses.logits(v, rows, temperature=t)
            estimate = instdisc_losses.partition(logits, num_images=count)
            z = torch.where(self.normalizer > 0, self.normalizer, estimate.to(self.normalizer))
            loss = instdisc_losses.nce(logits, z, num_images=count)
            update["normalizer"] = z
        if c.proximal_lambda > 0:
            distance = instdisc_losses.proximal(v, self.memory_bank.read(index))
            loss = loss + c.proximal_lambda * distance
        return Step(loss=loss, features=h, update=update)

    def after_step(self, at: Moment, step: Step) -> None:
        """Move the rows of these images toward their embeddings; set Z after the first step."""
        assert at.index is not None
        momentum, skipped = self.config.memory_momentum, step.skipped
        self.memory_bank.update(at.index, step.update["embeddings"], momentum, skipped=skipped)
        if "normalizer" in step.update:
            z = step.update["normalizer"]
            self.normalizer.copy_(
                z if skipped is None else torch.where(skipped > 0, self.normalizer, z)
            )
