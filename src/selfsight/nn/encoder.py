"""Backbone and encoder: the networks that map images to features and embeddings."""

from collections.abc import Iterator, Sequence
from itertools import groupby

import torch
from jaxtyping import Float
from torch import Tensor, nn

from selfsight.nn.batch_norm import BatchNorm
from selfsight.nn.chunked_encoder import in_chunks

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

    def crop_features(self, views: Sequence[Float[Tensor, "n c _ _"]]) -> Float[Tensor, "vn _"]:
        """Features of all views, one view after the other: one pass for each resolution."""
        by_size = groupby(views, key=lambda x: x.shape[2])
        return torch.cat([self.features(torch.cat(list(alike))) for _, alike in by_size])

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
