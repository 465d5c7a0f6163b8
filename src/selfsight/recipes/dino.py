"""DINO recipes."""

from dataclasses import replace

from selfsight.methods.dino import DINOConfig
from selfsight.recipe import Recipe
from selfsight.recipes.shared_settings import CIFAR_SGD, cifar10
from selfsight.views import byol, without_blur


def cifar10_r18_200ep() -> Recipe:
    """ResNet-18 on CIFAR-10, 200 epochs, two views.

    Reference: 81.3 % kNN (k = 200) (lightly, CIFAR-10 benchmark, batch 512).
    """
    return cifar10(
        DINOConfig(
            out_dim=2048,
            num_layers=2,
            head_norm=True,
            num_small=0,
            momentum=0.99,
            momentum_end=0.99,
            freeze_epochs=0,
        ),
        without_blur(byol(32, min_scale=0.4)),
        replace(CIFAR_SGD, schedule=replace(CIFAR_SGD.schedule, per_epoch=True)),
        epochs=200,
    )
