"""What can be said without labels: whether an image is found again in another view of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from selfsight import rng
from selfsight.data import ImageStore, read_batches
from selfsight.errors import UserError
from selfsight.evals.features import encode, eval_mode, module_device
from selfsight.evals.spectrum import alignment, effective_rank, retrieval, uniformity
from selfsight.progress import track
from selfsight.views import View, apply_views

EPOCH = 2**31 - 1  # draws views that no epoch of training showed


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelFreeEvaluator:
    """Retrieval, effective rank, alignment and uniformity, from two views of some images."""

    images: ImageStore
    views: Sequence[View]  # the first two are used; a single one is drawn twice
    seed: int = 0
    limit: int = 2048  # images; retrieval among fewer is easier, so compare at equal numbers
    batch_size: int = 256
    autocast: torch.dtype | None = None
    progress: bool = False

    def __post_init__(self) -> None:
        if len(self.images) < 2:
            raise UserError(
                f"There are {len(self.images)} images; to tell one from another takes two."
            )

    def settings(self) -> dict[str, Any]:
        """What decided the numbers, for the result file."""
        count = min(self.limit, len(self.images))
        return {"features": "backbone", "images": count, "views": 2, "seed": self.seed}

    def __call__(self, backbone: nn.Module) -> dict[str, float]:
        """The evaluator's numbers for a backbone."""
        device = module_device(backbone)
        count = min(self.limit, len(self.images))
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
        return {
            "retrieval": retrieval(h1, h2).item(),
            "effective_rank": effective_rank(h1).item(),
            "alignment": alignment(h1, h2).item(),
            "uniformity": uniformity(h1).item(),
        }
