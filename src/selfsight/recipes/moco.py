"""MoCo v1, v2 and v2+ recipes.

v2+ is v2 with both directions (SimSiam, arXiv:2011.10566, appendix C, which does not state whether
they are summed). The official CIFAR-10 demo sums them. The loss here is their mean, so learning
rate 2 r and weight decay w / 2 are the demo's sum at r and w: each direction learns at v2's rate.
"""

from dataclasses import replace

from selfsight.methods.moco import MoCoConfig
from selfsight.optim import Optim, Schedule
from selfsight.recipe import Recipe
from selfsight.recipes.shared_settings import (
    CIFAR_SGD_LOW_DECAY,
    cifar10,
    imagenet,
    imagenet100,
    imagenette,
)
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


def imagenet_v2plus_200ep() -> Recipe:
    """MoCo v2+, ResNet-50 on ImageNet, 200 epochs.

    Reference: 69.9 % linear top-1 (SimSiam, arXiv:2011.10566, table 4).
    """
    return replace(
        imagenet_v2_200ep(),
        method=MoCoConfig(symmetric=True),
        optim=Optim(lr=0.06, weight_decay=5e-5),
    )


def cifar10_r18_200ep() -> Recipe:
    """MoCo v2, ResNet-18 on CIFAR-10, 200 epochs, one direction.

    Reference: 82.6 % kNN (k = 200) (facebookresearch/moco, moco_cifar10_demo.ipynb; with a linear
    head, on its output).
    """
    return cifar10(
        MoCoConfig(queue_size=4096, temperature=0.2, momentum=0.99, bn="sync", bn_group=64),
        without_blur(moco_v2(32)),
        CIFAR_SGD_LOW_DECAY,
        epochs=200,
    )


def cifar10_v2plus_r18_200ep() -> Recipe:
    """MoCo v2+, ResNet-18 on CIFAR-10, 200 epochs, with crops from 0.08 of the image.

    Reference: 85.3 % kNN (k = 200) (facebookresearch/moco, moco_cifar10_demo.ipynb; with a linear
    head, on its output).
    """
    return cifar10(
        MoCoConfig(
            symmetric=True, queue_size=4096, temperature=0.2, momentum=0.99, bn="sync", bn_group=64
        ),
        tuple(replace(view, scale=(0.08, 1.0)) for view in without_blur(moco_v2(32))),
        replace(CIFAR_SGD_LOW_DECAY, lr=0.15),
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


def imagenette_v2plus_r18_200ep() -> Recipe:
    """MoCo v2+, ResNet-18 on Imagenette at 128 pixels, 200 epochs, batch norm over the batch.

    Reference: 78.6 % kNN (lightly, Imagenette benchmark).
    """
    method = MoCoConfig(
        symmetric=True,
        hidden_dim=2048,
        queue_size=4096,
        temperature=0.1,
        momentum=0.99,
        bn="sync",
    )
    optim = Optim(lr=0.06, weight_decay=5e-4, schedule=Schedule())
    return imagenette(cifar10_r18_200ep(), moco_v2(128), method=method, optim=optim)
