"""VICReg recipes."""

from dataclasses import replace

from selfsight.methods.vicreg import VICRegConfig
from selfsight.optim import OPTIMS, Schedule
from selfsight.recipe import Recipe
from selfsight.recipes.shared_settings import RESNET50_ZERO, cifar10, imagenet
from selfsight.views import barlow_twins, byol

LARS = replace(OPTIMS["lars"], lr=0.2, schedule=Schedule(warmup_epochs=10, end=0.001))


def imagenet_r50_1000ep() -> Recipe:
    """ResNet-50 on ImageNet, 1000 epochs.

    Reference: 73.2 % linear top-1 (VICReg, arXiv:2105.04906, table 1).
    """
    return imagenet(
        VICRegConfig(), barlow_twins(224), LARS, RESNET50_ZERO, epochs=1000, batch_size=2048
    )


def cifar10_r18_1000ep() -> Recipe:
    """ResNet-18 on CIFAR-10, 1000 epochs.

    Reference: 92.1 % linear top-1, online (solo-learn, README, with padding 2 in the stem).
    """
    view = replace(byol(32, min_scale=0.2)[0], blur=0.0, solarize=0.1)
    optim = replace(
        OPTIMS["lars"], variant="clipped", lr=0.3, weight_decay=1e-4, trust_coefficient=0.02
    )
    return cifar10(
        VICRegConfig(dim=2048, hidden_dim=2048, variance=50.0),  # solo-learn does not halve it
        (view, view),
        optim,
        epochs=1000,
        batch_size=256,
        save_every=10,
    )
