"""Backbone, student and teacher networks."""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from selfsight import dist
from selfsight.nn.batch_norm import BatchNorm
from selfsight.nn.chunked_encoder import check_chunk_size, in_chunks

BATCH_NORMS = (BatchNorm, nn.modules.batchnorm._BatchNorm)
Images = Float[Tensor, "n c h w"]
Rows = Float[Tensor, "n _"]


class Backbone(nn.Module):
    """Any network that maps images to one feature vector each, of width `dim`."""

    dim: int

    @staticmethod
    def wrap(net: nn.Module, *, dim: int) -> "Backbone":
        """Turn any module that maps [N, C, H, W] to [N, dim] into a backbone."""
        return net if isinstance(net, Backbone) else WrappedNet(net, dim)


class WrappedNet(Backbone):
    """A module from outside, with the width of its features."""

    def __init__(self, net: nn.Module, dim: int) -> None:
        super().__init__()
        self.net, self.dim = net, dim

    def forward(self, x: Images) -> Rows:
        """Features of each image; their width is checked."""
        h = self.net(x)
        if h.shape != (len(x), self.dim):
            raise ValueError(
                f"The wrapped network returned shape {tuple(h.shape)} for {len(x)} images, but "
                f"Backbone.wrap was given dim={self.dim}, so [{len(x)}, {self.dim}] was expected. "
                "Pool and flatten its output, remove its classifier, or correct dim."
            )
        return h


class Encoder(nn.Module):
    """Backbone, then projector; calling it gives (features, embedding)."""

    def __init__(self, backbone: Backbone, projector: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.projector = projector
        self.chunk_size: int | None = None  # images that the backbone encodes at a time

    def forward(self, x: Images) -> tuple[Rows, Rows]:
        """Features before and embedding after the projector."""
        h = self.features(x)
        return h, self.projector(h)

    def features(self, x: Images) -> Rows:
        """Features of the backbone, in chunks if `chunk_size` is set."""
        return in_chunks(self.backbone, self.backbone, self.chunk_size, x)

    def encode_views(self, *views: Float[Tensor, "n c _ _"]) -> list[tuple[Rows, Rows]]:
        """Encode all views, in one pass if there is no batch norm."""
        has_batch_norm = any(isinstance(m, BATCH_NORMS) for m in self.backbone.modules())
        if has_batch_norm or len({x.shape for x in views}) > 1:
            return [self(x) for x in views]
        features = self.features(torch.cat(views)).split(len(views[0]))
        return [(h, self.projector(h)) for h in features]


def encoders(method: nn.Module) -> Iterator[Encoder]:
    """All encoders of a method, the teacher's included."""
    return (m for m in method.modules() if isinstance(m, Encoder))


def set_chunk_size(method: nn.Module, chunk_size: int) -> None:
    """Let every backbone of a method encode this many images at a time.

    A teacher that gets several views of an image in one batch encodes as many times more.
    """
    teachers = [m for m in method.modules() if isinstance(m, Teacher)]
    num_keys = {id(teacher.net): teacher.num_keys for teacher in teachers}
    for encoder in encoders(method):
        encoder.chunk_size = chunk_size * num_keys.get(id(encoder), 1)
        check_chunk_size(encoder.chunk_size, encoder.backbone)


class Teacher(nn.Module):
    """A copy of the student that follows it as a moving average and never gets a gradient.

    Only parameters move: the teacher runs in training mode and keeps its own running statistics.
    `momentum` is that of the last update, for the log. `num_keys` views of an image come in one
    batch, view after view: a group of batch norm then holds as many times more (JCL).
    """

    def __init__(self, student: nn.Module, *, copy_weights: bool = True, num_keys: int = 1) -> None:
        super().__init__()
        net = copy.deepcopy(student) if copy_weights else reinitialized(student)
        self.net = net.requires_grad_(False)
        self.num_keys = num_keys
        self.momentum: Any = None

    @torch.no_grad()
    def forward(
        self, x: Images, shuffle_order: Int64[Tensor, " g"] | None = None
    ) -> tuple[Rows, Rows]:
        """Features and embedding, without a graph.

        With an order of the global batch, images are encoded in that order and put back: the
        groups of batch norm then hold other images than the student's (MoCo's shuffled BN).
        """
        if shuffle_order is None:
            return self.net(x)
        h, z = self.net(dist.gather(x)[dist.local_rows(shuffle_order)])
        positions = torch.arange(len(shuffle_order), device=shuffle_order.device)
        inverse = dist.local_rows(
            torch.empty_like(shuffle_order).scatter(0, shuffle_order, positions)
        )
        return dist.gather(h)[inverse], dist.gather(z)[inverse]

    @torch.no_grad()
    def follow(
        self, student: nn.Module, momentum: Any, *, skipped: Float[Tensor, ""] | None = None
    ) -> None:
        """Update teacher = momentum * teacher + (1 - momentum) * student.

        `momentum` is a number or a device scalar. Where `skipped` is 1 nothing moves; the host
        does not read it.
        """
        teachers: list[Any] = list(self.net.parameters())
        students: list[Any] = list(student.parameters())
        self.momentum = momentum
        if not isinstance(momentum, Tensor):
            if skipped is None:
                torch._foreach_lerp_(teachers, students, 1 - momentum)
                return
            # No multi-tensor kernel takes a device scalar as the weight of a lerp.
            weight = ((1 - momentum) * (1 - skipped.to(torch.float64))).to(teachers[0].dtype)
            for t, s in zip(teachers, students, strict=True):
                t.lerp_(s, weight)
            return
        keep, add = momentum, 1 - momentum
        if skipped is not None:
            keep, add = torch.where(skipped > 0, 1.0, keep), torch.where(skipped > 0, 0.0, add)
        # Scalars of another dtype would send the tensors through one by one.
        keep, add = keep.to(teachers[0].dtype), add.to(teachers[0].dtype)
        torch._foreach_mul_(teachers, keep)
        torch._foreach_add_(teachers, list(torch._foreach_mul(students, add)))


def reinitialized(network: nn.Module) -> nn.Module:
    """The same architecture with newly initialized weights, children before parents."""
    network = copy.deepcopy(network)
    for module in reversed(list(network.modules())):
        reset = getattr(module, "reset_parameters", None) or getattr(module, "init_weights", None)
        if callable(reset):
            reset()
    return network
