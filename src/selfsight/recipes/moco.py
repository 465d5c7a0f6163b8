"""MoCo v1 and v2 recipes."""

from dataclasses import replace

from selfsight.methods.moco import MoCoConfig
from selfsight.optim import Optim, Schedule
from selfsight.recipe import Recipe
from selfsight.recipes.base import cifar10, imagenet, imagenet100, imagenette
from selfsight.views import moco_v1, moco_v2, without_blur


def imagenet_v1_200ep() -> Recipe:
    """MoCo v1, ResNet-50 on ImageNet, 200 epochs.

    Reference: 60.6 % linear top-1 (facebookresearch/moco, README).
    """
    return imagenet(
        MoCoConfig(mlp=False, temperature=0.07),
        moco_v1(224),
        Optim(schedule=Schedule(name="step", milestones=(120.0, 160.0), per_epoch=True)),
        epochs=200,
        batch_size=256,
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
    return cifar10(
        MoCoConfig(queue_size=4096, temperature=0.1, momentum=0.99, bn_group=64),
        without_blur(moco_v2(32)),
        epochs=200,
    )


def imagenet100_r18_100ep() -> Recipe:
    """MoCo v2, ResNet-18 on ImageNet-100, 100 epochs: JCL's baseline.

    Reference: none printed; the settings are those of JCL's supplement (sections 4 and 5).
    """
    return imagenet100(imagenet_v2_200ep())


def imagenette_r18_200ep() -> Recipe:
    """MoCo v2, ResNet-18 on Imagenette at 128 pixels, 200 epochs, one direction.

    Reference: 87.4 % kNN after 800, symmetric loss (lightly, Imagenette benchmark).
    """
    return imagenette(
        cifar10_r18_200ep(),
        moco_v2(128),
        method=MoCoConfig(queue_size=4096, temperature=0.1, momentum=0.99),
    )
