"""Barlow Twins recipes."""

from dataclasses import replace

from selfsight.methods.barlow_twins import BarlowTwinsConfig
from selfsight.optim import OPTIMS, Schedule
from selfsight.recipe import Recipe
from selfsight.recipes.shared_settings import RESNET50_ZERO, cifar10, imagenet
from selfsight.views import barlow_twins, byol, without_blur

LARS = replace(OPTIMS["lars"], lr=0.2, lr_1d=0.0048, schedule=Schedule(warmup_epochs=10, end=0.001))


def imagenet_r50_1000ep() -> Recipe:
    """ResNet-50 on ImageNet, 1000 epochs.

    Reference: 73.2 % linear top-1 (Barlow Twins, arXiv:2103.03230, table 1); 73.5 % of the
    released checkpoint (facebookresearch/barlowtwins, README).
    """
    return imagenet(
        BarlowTwinsConfig(), barlow_twins(224), LARS, RESNET50_ZERO, epochs=1000, batch_size=2048
    )


def cifar10_r18_200ep() -> Recipe:
    """ResNet-18 on CIFAR-10, 200 epochs.

    Reference: 81.9 % kNN (k = 200) (lightly, CIFAR-10 benchmark, batch 512).
    """
    return cifar10(
        BarlowTwinsConfig(dim=2048, hidden_dim=2048, redundancy=0.005),
        without_blur(byol(32)),
        epochs=200,
    )
