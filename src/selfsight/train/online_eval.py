"""Measure features during training: a linear probe on detached features, and `online_knn`."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from selfsight import dist, rng
from selfsight.data import ImageStore
from selfsight.evals.eval_images import Images
from selfsight.evals.knn import KNN
from selfsight.evals.labeled_data import LabeledData
from selfsight.nn.batch_norm import BatchNorm
from selfsight.optim import load_optimizer_state
from selfsight.recipe import Recipe, eval_transform
from selfsight.train.skipped_steps import step_if_finite

DIP = 0.01  # accuracy below the best so far
ONLINE_IMAGES = 5000  # evaluated during training; more would take longer than the steps between


class OnlineProbe:
    """A linear classifier trained along with the method, on the batches of all processes."""

    def __init__(self, dim: int, num_classes: int, device: torch.device) -> None:
        self.layer = nn.Sequential(BatchNorm(dim, affine="none"), nn.Linear(dim, num_classes))
        self.layer.to(device)
        on_gpu = device.type == "cuda"
        self.optimizer = torch.optim.Adam(
            self.layer.parameters(), lr=1e-3, fused=on_gpu, capturable=on_gpu
        )

    def update(
        self,
        features: Float[Tensor, "n d"],
        labels: Int64[Tensor, " n"],
        found_inf: Float[Tensor, ""],
    ) -> Float[Tensor, ""]:
        """Train on this batch, unless the step is skipped; return the accuracy before that."""
        logits = self.layer(features.detach().to(next(self.layer.parameters()).dtype))
        self.optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(logits, labels).backward()
        dist.average_gradients(self.layer.parameters())
        step_if_finite(self.optimizer, found_inf)
        return (logits.argmax(dim=1) == labels).float().mean()

    def state_dict(self) -> dict[str, Any]:
        """Return the tensors that a checkpoint holds."""
        return {"layer": self.layer.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.layer.load_state_dict(saved["layer"])
        load_optimizer_state(self.optimizer, saved["optimizer"])


def build_online_knn(recipe: Recipe, images: ImageStore) -> KNN | None:
    """Build `online_knn`, measured during training on training images, if they have labels.

    Each image is classified by the others, so that every one counts. All of them are training
    images: the accuracy is called `online_knn` and is not comparable with the protocol `knn`.
    """
    if images.labels is None:
        return None
    subset = sample_images(images, ONLINE_IMAGES, recipe.seed)
    data = LabeledData(train=images, transform=eval_transform(recipe), subset=subset)
    return KNN(data=data, ks=(20,))


def count_dips(accuracies: Sequence[float]) -> int:
    """Count the measurements that are a point or more below the best before them.

    Such dips show that training is unstable (MoCo v3 with a ViT).
    """
    best = accumulate(accuracies, max)
    return sum(high - now > DIP - 1e-9 for now, high in zip(accuracies, best, strict=True))


def sample_images(images: Images, count: int, seed: int) -> Int64[Tensor, " n"]:
    """Sample the indices of at most this many images, in rising order."""
    position = torch.arange(min(count, len(images)))
    return rng.shuffled(rng.key(seed, "measure"), len(images), position).sort().values
