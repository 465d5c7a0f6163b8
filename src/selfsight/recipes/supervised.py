"""Recipes of the supervised baseline."""

from selfsight.methods.supervised import SupervisedConfig
from selfsight.optim import Optim, Schedule
from selfsight.recipe import Recipe
from selfsight.recipes.base import cifar10, imagenet
from selfsight.views import View


def _crop_and_flip(size: int, min_scale: float) -> tuple[View, ...]:
    return (View(size=size, scale=(min_scale, 1.0), jitter_p=0.0, gray=0.0, blur=0.0),)


def imagenet_r50_90ep() -> Recipe:
    """ResNet-50 on ImageNet, 90 epochs.

    Reference: 76.1 % top-1 (torchvision, ResNet50_Weights.IMAGENET1K_V1).
    """
    schedule = Schedule(name="step", milestones=(30, 60), per_epoch=True)
    return imagenet(
        SupervisedConfig(),
        _crop_and_flip(224, 0.08),
        Optim(lr=0.1, weight_decay=1e-4, schedule=schedule),
        epochs=90,
        batch_size=256,
    )


def cifar10_r18_100ep() -> Recipe:
    """ResNet-18 on CIFAR-10, 100 epochs.

    Reference: 93.0 % top-1 after 200 epochs, with padded crops (kuangliu/pytorch-cifar, README).
    """
    return cifar10(
        SupervisedConfig(),
        _crop_and_flip(32, 0.2),
        Optim(lr=0.05, weight_decay=5e-4, schedule=Schedule(warmup_epochs=5.0)),
        epochs=100,
    )
