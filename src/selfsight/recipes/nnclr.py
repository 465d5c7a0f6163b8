"""NNCLR recipes."""

from dataclasses import replace

from selfsight.methods.nnclr import NNCLRConfig
from selfsight.nn.combinatorial_patches import Patches
from selfsight.optim import OPTIMS
from selfsight.recipe import Recipe
from selfsight.recipes import fast_moco
from selfsight.recipes.shared_settings import CIFAR_SGD_WARM, cifar10, imagenet
from selfsight.views import byol, simclr, without_blur


def imagenet_r50_100ep() -> Recipe:
    """ResNet-50 on ImageNet, 100 epochs.

    Reference: 69.4 % linear top-1 (NNCLR, arXiv:2104.14548).
    """
    return imagenet(NNCLRConfig(), byol(224), OPTIMS["lars"], epochs=100, batch_size=4096)


def imagenet_r50_1000ep() -> Recipe:
    """ResNet-50 on ImageNet, 1000 epochs.

    Reference: 75.4 % linear top-1 (NNCLR, arXiv:2104.14548).
    """
    return replace(imagenet_r50_100ep(), epochs=1000)


def imagenet_r50_patches_100ep() -> Recipe:
    """ResNet-50 on ImageNet, 100 epochs, with Fast-MoCo's patches, heads, teacher and optimizer.

    Reference: 72.5 % linear top-1 (Fast-MoCo, arXiv:2207.08220, appendix, table 3).
    """
    method = NNCLRConfig(
        dim=2048, predictor_dim=512, heads="fast_moco", patches=Patches(), teacher_momentum=0.99
    )
    return replace(fast_moco.imagenet_r50_100ep(), method=method)


def cifar10_r18_200ep() -> Recipe:
    """ResNet-18 on CIFAR-10, 200 epochs.

    Reference: 81.5 % kNN (k = 200) (lightly, CIFAR-10 benchmark, batch 512). Temperature (there
    0.5) and warm-up are ours, tuned on held-out images: docs/results.md.
    """
    return cifar10(
        NNCLRConfig(temperature=0.2, queue_size=8192),
        without_blur(simclr(32, strength=0.5)),
        CIFAR_SGD_WARM,
        epochs=200,
    )
