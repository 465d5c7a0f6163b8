"""Recipes of the supervised baseline.

With `--backbone.name vit_s16` they learn the patch projection, which MoCo v3 freezes.
"""

from dataclasses import replace

from selfsight.backbones import BackboneConfig
from selfsight.methods.supervised import SupervisedConfig
from selfsight.optim import OPTIMS, Optim, Schedule
from selfsight.recipe import Recipe
from selfsight.recipes.shared_settings import RESNET50, cifar10, imagenet
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
        replace(RESNET50, freeze_patch=False),
        epochs=90,
        batch_size=256,
    )


def cifar10_r18_100ep() -> Recipe:
    """ResNet-18 on CIFAR-10, 100 epochs.

    Reference: 93.0 % top-1 after 200 epochs, with padded crops (kuangliu/pytorch-cifar, README).
    """
    recipe = cifar10(
        SupervisedConfig(),
        _crop_and_flip(32, 0.2),
        Optim(lr=0.05, weight_decay=5e-4, schedule=Schedule(warmup_epochs=5.0)),
        epochs=100,
    )
    return replace(recipe, backbone=replace(recipe.backbone, freeze_patch=False))


def cifar10_vit_t4_200ep() -> Recipe:
    """A ViT of DeiT-Ti's width with patches of 4 pixels on CIFAR-10, 200 epochs, all of it learned.

    Reference: none published at this setting.
    """
    return replace(
        cifar10_r18_100ep(),
        backbone=BackboneConfig(name="vit_t4", image_size=32, freeze_patch=False),
        optim=replace(
            OPTIMS["adamw"], lr=5e-4, weight_decay=0.05, schedule=Schedule(warmup_epochs=20)
        ),
        epochs=200,
    )
