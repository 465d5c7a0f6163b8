"""SwAV recipes."""

from dataclasses import replace
from functools import partial

from selfsight.methods.swav import SwAVConfig
from selfsight.optim import Optim, Schedule
from selfsight.recipe import Recipe
from selfsight.recipes.base import cifar10, imagenet
from selfsight.recipes.grid import cell
from selfsight.views import simclr, swav

# apex's LARC around SGD, with decay on everything; the cosine ends at a thousandth.
LARC = Optim(
    name="lars",
    variant="larc",
    lr=4.8,
    scale="none",
    weight_decay=1e-6,
    schedule=Schedule(warmup_epochs=10, warmup_start=0.3 / 4.8, end=0.001),
)


def _imagenet(epochs: int) -> Recipe:
    return imagenet(SwAVConfig(), swav(224), LARC, epochs=epochs, batch_size=4096)


def _small_batch(epochs: int) -> Recipe:
    return replace(
        _imagenet(epochs),
        method=SwAVConfig(queue_size=3840, freeze_steps=5005),
        optim=replace(LARC, lr=0.6, schedule=Schedule(end=0.001)),
        batch_size=256,
    )


def imagenet_r50_two_views_400ep() -> Recipe:
    """ResNet-50 on ImageNet, 400 epochs, batch 4096, without small crops.

    Reference: 70.1 % linear top-1 (facebookresearch/swav, README).
    """
    return replace(_imagenet(400), method=SwAVConfig(num_small=0), views=swav(224)[:2])


def cifar10_r18_200ep() -> Recipe:
    """ResNet-18 on CIFAR-10, 200 epochs, two views.

    Reference: 84.2 % kNN (k = 200) (lightly, CIFAR-10 benchmark, batch 512).
    """
    view = replace(simclr(32, strength=0.5)[0], scale=(0.14, 1.0), blur=0.0)
    return cifar10(
        SwAVConfig(hidden_dim=512, num_prototypes=512, num_small=0, freeze_steps=0),
        (view, view),
        Optim(name="adamw", lr=1e-3, scale="none", weight_decay=1e-6, schedule=Schedule()),
        epochs=200,
    )


GRID = {
    f"imagenet_r50_{epochs}ep": cell(
        partial(_imagenet, epochs),
        f"ResNet-50 on ImageNet, {epochs} epochs, batch 4096, two large and six small crops.",
        f"{top1} % linear top-1 (facebookresearch/swav, README).",
    )
    for epochs, top1 in ((100, 72.1), (200, 73.9), (400, 74.6), (800, 75.3))
}
GRID |= {
    f"imagenet_r50_batch256_{epochs}ep": cell(
        partial(_small_batch, epochs),
        f"ResNet-50 on ImageNet, {epochs} epochs, batch 256 with a queue.",
        f"{top1} % linear top-1 (facebookresearch/swav, README).",
    )
    for epochs, top1 in ((200, 72.7), (400, 74.3))
}
