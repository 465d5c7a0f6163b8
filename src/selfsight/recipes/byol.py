"""BYOL recipes."""

from dataclasses import replace

from selfsight.methods.byol import BYOLConfig
from selfsight.nn.combinatorial_patches import Patches
from selfsight.optim import OPTIMS
from selfsight.recipe import Recipe
from selfsight.recipes import fast_moco
from selfsight.recipes.shared_settings import CIFAR_SGD_WARM, RESNET50_ZERO, cifar10, imagenet
from selfsight.views import byol, without_blur


def imagenet_r50_100ep() -> Recipe:
    """ResNet-50 on ImageNet, 100 epochs.

    Reference: 66.5 % linear top-1 (SimSiam's reproduction, arXiv:2011.10566, table 4).
    """
    return imagenet(
        BYOLConfig(),
        byol(224),
        replace(OPTIMS["lars"], lr=0.45),
        RESNET50_ZERO,
        epochs=100,
        batch_size=4096,
    )


def imagenet_r50_300ep() -> Recipe:
    """ResNet-50 on ImageNet, 300 epochs.

    Reference: none that we could confirm at batch 4096; 72.3, 72.2 and 71.9 % linear top-1 at batch
    1024, 512 and 256 (BYOL, as quoted by Fast-MoCo, arXiv:2207.08220, appendix, table 4).
    """
    return replace(imagenet_r50_100ep(), epochs=300, optim=OPTIMS["lars"])


def imagenet_r50_1000ep() -> Recipe:
    """ResNet-50 on ImageNet, 1000 epochs.

    Reference: 74.3 % linear top-1 (BYOL, arXiv:2006.07733, table 1).
    """
    return replace(
        imagenet_r50_100ep(),
        epochs=1000,
        method=BYOLConfig(momentum=0.996),
        optim=replace(OPTIMS["lars"], lr=0.2, weight_decay=1.5e-6),
    )


def imagenet_r50_patches_100ep() -> Recipe:
    """ResNet-50 on ImageNet, 100 epochs, with Fast-MoCo's patches, heads, teacher and optimizer.

    Reference: 73.6 % linear top-1 (Fast-MoCo, arXiv:2207.08220, appendix, table 3).
    """
    method = BYOLConfig(
        dim=2048, hidden_dim=512, heads="fast_moco", patches=Patches(), momentum_end=0.99
    )
    return replace(fast_moco.imagenet_r50_100ep(), method=method)


def cifar10_r18_100ep() -> Recipe:
    """ResNet-18 on CIFAR-10, 100 epochs.

    Reference: 86.8 % kNN (k = 200) after 200 epochs (lightly, CIFAR-10 benchmark, batch 512).
    Ours: 83.0 % kNN (k = 200), 86.6 % linear (commit ce2c7f5, docs/results.md).
    """
    return cifar10(
        BYOLConfig(hidden_dim=1024),
        without_blur(byol(32, min_scale=0.2)),
        CIFAR_SGD_WARM,
        epochs=100,
    )
