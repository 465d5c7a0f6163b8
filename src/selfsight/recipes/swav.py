"""SwAV recipes."""

from dataclasses import replace

from selfsight.methods.swav import SwAVConfig
from selfsight.optim import Optim, Schedule
from selfsight.recipe import Recipe
from selfsight.recipes.shared_settings import cifar10, imagenet
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


def imagenet_r50_800ep() -> Recipe:
    """ResNet-50 on ImageNet, 800 epochs, batch 4096, two large and six small crops.

    Reference: 75.3 % linear top-1 (facebookresearch/swav, README).
    """
    return imagenet(SwAVConfig(), swav(224), LARC, epochs=800, batch_size=4096)


def imagenet_r50_batch256_400ep() -> Recipe:
    """ResNet-50 on ImageNet, 400 epochs, batch 256 with a queue.

    Reference: 74.3 % linear top-1 (facebookresearch/swav, README).
    """
    return replace(
        imagenet_r50_800ep(),
        epochs=400,
        method=SwAVConfig(queue_size=3840, freeze_steps=5005),
        optim=replace(LARC, lr=0.6, schedule=Schedule(end=0.001)),
        batch_size=256,
    )


def imagenet_r50_two_views_400ep() -> Recipe:
    """ResNet-50 on ImageNet, 400 epochs, batch 4096, without small crops.

    Reference: 70.1 % linear top-1 (facebookresearch/swav, README).
    """
    return replace(
        imagenet_r50_800ep(), epochs=400, method=SwAVConfig(num_small=0), views=swav(224)[:2]
    )


def cifar10_r18_200ep() -> Recipe:
    """ResNet-18 on CIFAR-10, 200 epochs, two views.

    Reference: 84.2 % kNN (k = 200) (lightly, CIFAR-10 benchmark, batch 512). The warm-up is ours,
    tuned on held-out images: docs/results.md.
    """
    view = replace(simclr(32, strength=0.5)[0], scale=(0.14, 1.0), blur=0.0)
    return cifar10(
        SwAVConfig(hidden_dim=512, num_prototypes=512, num_small=0, freeze_steps=0),
        (view, view),
        Optim(
            name="adamw",
            lr=2e-3,
            weight_decay=1e-6,
            schedule=Schedule(per_epoch=True, warmup_epochs=5.0),
        ),
        epochs=200,
    )
