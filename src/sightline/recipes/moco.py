"""MoCo v1 and v2 recipes."""

from dataclasses import replace

from sightline.backbones import BackboneConfig
from sightline.methods.moco import MoCoConfig
from sightline.optim import Optim, Schedule
from sightline.recipe import Data, Recipe
from sightline.views import moco_v1, moco_v2, without_blur


def imagenet_v1_200ep() -> Recipe:
    """MoCo v1, ResNet-50 on ImageNet, 200 epochs.

    Reference: 60.6 % linear top-1 (facebookresearch/moco, README).
    """
    return Recipe(
        method=MoCoConfig(mlp=False, temperature=0.07),
        views=moco_v1(224),
        optim=Optim(schedule=Schedule(kind="step", milestones=(120.0, 160.0), per_epoch=True)),
        backbone=BackboneConfig(name="resnet50"),
        epochs=200,
        batch_size=256,
        precision="bf16",
        compile=True,
    )


def imagenet_v2_200ep() -> Recipe:
    """MoCo v2, ResNet-50 on ImageNet, 200 epochs.

    Reference: 67.5 % linear top-1 (facebookresearch/moco, README).
    """
    return replace(imagenet_v1_200ep(), method=MoCoConfig(), views=moco_v2(224), optim=Optim())


def imagenet_v2_800ep() -> Recipe:
    """MoCo v2, ResNet-50 on ImageNet, 800 epochs.

    Reference: 71.1 % linear top-1 (facebookresearch/moco, README).
    """
    return replace(imagenet_v2_200ep(), epochs=800)


def cifar10_r18_200ep() -> Recipe:
    """MoCo v2, ResNet-18 on CIFAR-10, 200 epochs, one direction.

    Reference: 84.7 % kNN (k = 200), symmetric loss (lightly, CIFAR-10 benchmark, batch 512).
    """
    return Recipe(
        method=MoCoConfig(queue_size=4096, temperature=0.1, momentum=0.99, bn_group=64),
        views=without_blur(moco_v2(32)),
        optim=Optim(lr=0.12, weight_decay=5e-4, schedule=Schedule()),
        backbone=BackboneConfig(name="resnet18", image_size=32),
        data=Data(store_size=32),
        epochs=200,
        batch_size=512,
        precision="bf16",
        log_every=50,
        save_every=5,
    )
