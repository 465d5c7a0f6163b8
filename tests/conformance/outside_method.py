"""A method of another package, and ways to break each rule of the contract."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from selfsight import dist
from selfsight.losses.contrastive import queue_info_nce
from selfsight.methods import Method, MethodConfig, Step
from selfsight.nn import Encoder, Queue, Teacher, mlp

FROZEN = {  # what a step names as frozen, by the mistake
    "a frozen name is unknown": {"head.last.weight": torch.tensor(False)},
    "a frozen parameter learns": {"student.projector.0.weight": torch.tensor(True)},
}


@dataclass(frozen=True, kw_only=True)
class OutsideConfig(MethodConfig):
    """A small MoCo; `breaks` is the mistake that it makes."""

    info_nce: ClassVar[bool] = True
    dim: int = 8
    queue_size: int = 16
    temperature: float = 0.2
    breaks: str = ""

    def create(self, backbone, data):
        """The method around this backbone."""
        return OutsideMethod(backbone, self)


@dataclass(frozen=True, kw_only=True)
class EmptyConfig(MethodConfig):
    """Settings without a method."""


@dataclass(frozen=True, kw_only=True)
class NeedyConfig(OutsideConfig):
    """Settings of which one has no default."""

    width: int


class OutsideMethod(Method):
    """Student, teacher and queue."""

    def __init__(self, backbone, config):
        super().__init__()
        self.config = config
        self.student = Encoder(backbone, mlp(backbone.dim, config.dim, last_bias=True))
        self.teacher = Teacher(self.student)
        self.queue = Queue(config.queue_size, config.dim)
        if config.breaks == "state is not saved":
            self.queue.register_buffer("keys", self.queue.keys, persistent=False)
        if config.breaks == "a parameter is not used":
            self.unused = nn.Parameter(torch.zeros(3))
        self.calls, self.last_keys = 0, None

    def forward(self, views, at):
        """The key of the same image against the queue."""
        (x1, x2), breaks = views, self.config.breaks
        if breaks == "the global random state is read":
            x1 = x1 + 0.1 * torch.randn_like(x1)
        if breaks == "numpy's random state is read":
            x1 = x1 * float(np.random.uniform(0.5, 1.5))
        h, q = self.student(x1)
        _, k = self.teacher(x2)
        if breaks == "the teacher gets a gradient":
            _, k = self.teacher.net(x2)
        negatives = self.queue.read()
        if breaks == "the positive is a negative":
            negatives = torch.cat([negatives, dist.gather(F.normalize(k, dim=1))])
        loss = queue_info_nce(q, k, negatives, temperature=self.config.temperature)
        if breaks == "the loss is a vector":
            loss = loss.expand(len(x1))
        if breaks == "the loss depends on the share of a process":
            loss = loss * len(x1)
        if breaks == "":  # what a loss needs of the whole batch, with its gradient
            loss = loss + dist.mean(q.mean(0)).square().sum()
        if breaks == "the loss is bf16":
            loss = loss.bfloat16() if q.dtype == torch.bfloat16 else loss
        if breaks == "labels are read":
            loss = loss + at.labels.float().mean()
        if breaks == "the index is read":
            loss = loss + at.index[0]
        if breaks == "the queue is pushed in forward":
            self.queue.push(F.normalize(k, dim=1))
        if breaks == "forward counts its calls":
            self.calls += 1
        if breaks == "evaluation mode counts its calls":
            self.calls += not self.training
        if breaks == "keys are stashed":
            self.last_keys = k
        if breaks == "the host reads the loss":
            loss = loss * (1 if loss.item() > 0 else 2)
        if breaks == "the features are of the second view":
            h, _ = self.student(x2)
        keys = F.normalize(q if breaks == "the update has a graph" else k, dim=1)
        frozen = FROZEN.get(breaks, {})
        return Step(loss=loss, features=h, update={"keys": keys}, frozen=frozen)

    def after_step(self, at, step):
        """Let the teacher follow, and push the keys."""
        breaks, skipped, keys = self.config.breaks, step.skipped, step.update["keys"]
        if breaks == "a skipped step is not masked":
            skipped = None
        if breaks == "a masked step does nothing" and skipped is not None:
            return
        if breaks == "keys are stashed":
            keys = F.normalize(self.last_keys, dim=1)
        if breaks == "the momentum is a plain attribute":
            self.calls += 1
        if breaks != "the teacher stays":
            momentum = 0.9 if self.calls < 3 else 0.5
            self.teacher.follow(self.student, momentum, skipped=skipped)
        self.queue.push(keys, skipped=skipped)
