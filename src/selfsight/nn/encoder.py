"""Backbone, student and teacher networks."""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from selfsight import dist
from selfsight.nn.batch_norm import BatchNorm

BATCH_NORMS = (BatchNorm, nn.modules.batchnorm._BatchNorm)
Images = Float[Tensor, "n c h w"]
Rows = Float[Tensor, "n _"]


class Backbone(nn.Module):
    """Any network that maps images to feature rows of a known width."""

    dim: int


class Encoder(nn.Module):
    """Backbone then projector; calling it gives (features, embedding)."""

    def __init__(self, backbone: Backbone, projector: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.projector = projector

    def forward(self, x: Images) -> tuple[Rows, Rows]:
        """Features before and embedding after the projector."""
        h = self.backbone(x)
        return h, self.projector(h)

    def each(self, *views: Float[Tensor, "n c _ _"]) -> list[tuple[Rows, Rows]]:
        """What calling it with each view gives; as one batch where no batch norm would mix them."""
        mixed = any(isinstance(part, BATCH_NORMS) for part in self.backbone.modules())
        if mixed or len({x.shape for x in views}) > 1:
            return [self(x) for x in views]
        h = self.backbone(torch.cat(views)).split(len(views[0]))
        return [(part, self.projector(part)) for part in h]


def encoders(module: nn.Module) -> Iterator[Encoder]:
    """Those that a method holds, the teacher's too."""
    return (part for part in module.modules() if isinstance(part, Encoder))


class Teacher(nn.Module):
    """A network like the student that follows it as a moving average and never sees a gradient.

    `momentum` is that of the last move, kept for the log. Only parameters move: the teacher runs
    in training mode and keeps its own running statistics. `keys_each` views of an image come in
    one batch, view after view: a group of batch norm then holds as many times more (JCL).
    """

    def __init__(self, student: nn.Module, *, copied: bool = True, keys_each: int = 1) -> None:
        super().__init__()
        net = copy.deepcopy(student) if copied else fresh(student)
        self.net = net.requires_grad_(False)
        self.keys_each = keys_each
        self.momentum: Any = None

    @torch.no_grad()
    def forward(self, x: Images, order: Int64[Tensor, " g"] | None = None) -> tuple[Rows, Rows]:
        """What the student's double says, without a graph.

        With an order of the global batch, images are encoded in that order and put back: the
        groups of batch norm then mix images otherwise than the student's (shuffled BN of MoCo).
        """
        if order is None:
            return self.net(x)
        h, z = self.net(dist.gather(x)[dist.local_rows(order)])
        places = torch.arange(len(order), device=order.device)
        back = dist.local_rows(torch.empty_like(order).scatter(0, order, places))
        return dist.gather(h)[back], dist.gather(z)[back]

    @torch.no_grad()
    def follow(self, student: nn.Module, momentum: Any) -> None:
        """teacher = momentum * teacher + (1 - momentum) * student; a number or a device scalar."""
        mine: list[Any] = list(self.net.parameters())
        theirs: list[Any] = list(student.parameters())
        self.momentum = momentum
        if isinstance(momentum, float):  # one pass over both networks instead of three
            torch._foreach_lerp_(mine, theirs, 1 - momentum)
            return
        # A scalar of another type than theirs would send the tensors through one by one.
        keep, rest = (part.to(mine[0].dtype) for part in (momentum, 1 - momentum))
        torch._foreach_mul_(mine, keep)
        torch._foreach_add_(mine, list(torch._foreach_mul(theirs, rest)))


def fresh(network: nn.Module) -> nn.Module:
    """The same architecture with weights drawn anew, parts before wholes."""
    network = copy.deepcopy(network)
    for module in reversed(list(network.modules())):
        reset = getattr(module, "reset_parameters", None) or getattr(module, "init_weights", None)
        if callable(reset):
            reset()
    return network
