"""MSBReg recipes; tables are those of the supplement of arXiv:2207.03552."""

from dataclasses import replace

from selfsight.methods.msbreg import MSBRegConfig
from selfsight.optim import OPTIMS, Optim
from selfsight.recipe import Data, Recipe
from selfsight.recipes.shared_settings import (
    CIFAR_SGD_WARM,
    RESNET18,
    RESNET50,
    cifar10,
    imagenet,
    imagenette,
    with_imagenet100_classes,
)
from selfsight.views import msbreg, without_blur


def _lars(base: float, num_views: int) -> Optim:
    """LARS with the learning rate of the supplement, section 1.1: base x batch / 256 x K."""
    return replace(OPTIMS["lars"], lr=base * num_views, weight_decay=1e-5)


def _resnet18(method: MSBRegConfig) -> Recipe:
    return imagenet(
        method,
        msbreg(224, num_views=method.num_views),
        _lars(0.4, method.num_views),
        RESNET18,
        epochs=320,
        batch_size=512,
    )


def imagenet_r50_300ep() -> Recipe:
    """ResNet-50 on ImageNet, four views, 300 epochs, with the lambdas of ImageNet-100.

    Reference: 41.8 box and 37.8 mask AP on COCO (supplement, table 2); its lambdas and its linear
    accuracy are in the main paper only.
    """
    return replace(
        _resnet18(MSBRegConfig(dim=256, hidden_dim=4096)),
        epochs=300,
        optim=_lars(0.15, 4),
        backbone=RESNET50,
    )


def imagenet100_r18_k4_320ep() -> Recipe:
    """ResNet-18 on ImageNet-100, four views, 320 epochs.

    Reference: 80.4 % linear top-1 (MSBReg, supplement, table 3).
    """
    return with_imagenet100_classes(_resnet18(MSBRegConfig()))


def imagenet100_r18_k8_320ep() -> Recipe:
    """ResNet-18 on ImageNet-100, eight views, 320 epochs.

    Reference: 81.6 % linear top-1 (MSBReg, supplement, table 5, after 300 epochs).
    """
    return with_imagenet100_classes(_resnet18(MSBRegConfig(num_views=8)))


def stl10_r18_320ep() -> Recipe:
    """ResNet-18 on STL-10, unlabeled and training images, four views, lambda_b 0.05, 320 epochs.

    Reference: 91.4 % linear top-1 (MSBReg, supplement, table 4; the number of views is not stated).
    """
    large = imagenet(
        MSBRegConfig(brownian_weight=5e-2),
        msbreg(96, num_views=4),
        _lars(0.5, 4),
        replace(RESNET18, image_size=96),
        epochs=320,
        batch_size=256,
    )
    return replace(large, data=Data(store_size=96))


def cifar10_r18_100ep() -> Recipe:
    """ResNet-18 on CIFAR-10, four views, 100 epochs; lambda_s and learning rate of small networks.

    Reference: none published; BYOL reaches 86.8 % kNN (k = 200) after 200 epochs (lightly).
    """
    return cifar10(
        MSBRegConfig(singular_weight=2.5e-4),
        without_blur(msbreg(32, num_views=4)),
        replace(CIFAR_SGD_WARM, lr=0.48, weight_decay=2.5e-4),  # BYOL's steps; docs/results.md
        epochs=100,
    )


def imagenette_r18_200ep() -> Recipe:
    """ResNet-18 on Imagenette at 128 pixels, four views, 200 epochs.

    Reference: none published; BYOL reaches 88.7 % kNN after 800 (lightly, Imagenette benchmark).
    """
    return imagenette(cifar10_r18_100ep(), msbreg(128, num_views=4))
