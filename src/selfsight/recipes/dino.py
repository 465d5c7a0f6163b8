"""DINO recipes."""

from dataclasses import replace

from selfsight.methods.dino import DINOConfig
from selfsight.optim import OPTIMS
from selfsight.recipe import Recipe
from selfsight.recipes.base import CIFAR_SGD, cifar10
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


def cifar10_r18_1000ep() -> Recipe:
    """ResNet-18 on CIFAR-10, 1000 epochs, two views.

    Reference: 89.5 % linear top-1, online (solo-learn, README; its LARS also clips the ratio).
    """
    return cifar10(
        DINOConfig(out_dim=4096, num_small=0, teacher_temperature=0.07, momentum=0.9995),
        without_blur(byol(32, min_scale=0.08)),
        replace(OPTIMS["lars"], lr=0.3, trust_coefficient=0.02),
        epochs=1000,
        batch_size=256,
        save_every=10,
    )
