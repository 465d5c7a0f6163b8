"""Measures without labels, from two random views of each image: retrieval, rank, alignment."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from selfsight import rng
from selfsight.data import ImageStore, read_batches
from selfsight.errors import UserError
from selfsight.evals.extract_features import encode, eval_mode, module_device
from selfsight.evals.feature_statistics import alignment, effective_rank, retrieval, uniformity
from selfsight.terminal.progress import track
from selfsight.views import View, apply_views

EPOCH = 2**31 - 1  # no epoch of training samples the same views


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelFreeEvaluator:
    """Retrieval, effective rank, alignment and uniformity, from two views of some images."""

    images: ImageStore
    views: Sequence[View]  # the first two; a single one is sampled twice
    seed: int = 0
    max_images: int = 2048  # retrieval among fewer images is easier: compare equal numbers only
    batch_size: int = 256
    autocast: torch.dtype | None = None
    progress: bool = False

    def __post_init__(self) -> None:
        if len(self.images) < 2:
            raise UserError(
                f"There are {len(self.images)} images, but retrieval needs at least 2. Add images."
            )

    def settings(self) -> dict[str, Any]:
        """The settings that decided the numbers, for the result file."""
        count = min(self.max_images, len(self.images))
        return {"features": "backbone", "images": count, "views": 2, "seed": self.seed}

    def encode_views(
        self, backbone: nn.Module
    ) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n d"]]:
        """Encode two views of each image."""
        device = module_device(backbone)
        count = min(self.max_images, len(self.images))
        order = rng.key(self.seed, "label_free")
        index = rng.shuffled(order, len(self.images), torch.arange(count))
        pair = (*self.views, *self.views)[:2] if len(self.views) == 1 else self.views[:2]
        rows = []
        with eval_mode(backbone):
            parts = index.split(self.batch_size)
            batches = read_batches(self.images, ((EPOCH, part) for part in parts), device)
            for raw in track(batches, "views" if self.progress else None, len(parts)):
                pixels = apply_views(pair, raw.images, raw.index, seed=self.seed, epoch=raw.epoch)
                rows.append([encode(backbone, x, self.autocast) for x in pixels])
        h1, h2 = (torch.cat(column) for column in zip(*rows, strict=True))
        return h1, h2

    def __call__(self, backbone: nn.Module) -> dict[str, float]:
        """Return the numbers for a backbone."""
        h1, h2 = self.encode_views(backbone)
        return {
            "retrieval": retrieval(h1, h2).item(),
            "effective_rank": effective_rank(h1).item(),
            "alignment": alignment(h1, h2).item(),
            "uniformity": uniformity(h1).item(),
        }
