"""SimSiam recipes."""

from dataclasses import replace

from selfsight.methods.simsiam import SimSiamConfig
from selfsight.nn.combinatorial_patches import Patches
from selfsight.optim import Optim, Schedule
from selfsight.recipe import Recipe
from selfsight.recipes import fast_moco
from selfsight.recipes.shared_settings import RESNET50_ZERO, cifar10, imagenet, imagenette
from selfsight.views import moco_v2, without_blur


def imagenet_r50_100ep() -> Recipe:
    """ResNet-50 on ImageNet, 100 epochs.

    Reference: 68.1 % linear top-1 (facebookresearch/simsiam, README).
    """
    return imagenet(
        SimSiamConfig(),
        moco_v2(224),
        Optim(lr=0.05, predictor_lr="constant"),
        RESNET50_ZERO,
        epochs=100,
        batch_size=512,
    )


def imagenet_r50_800ep() -> Recipe:
    """ResNet-50 on ImageNet, 800 epochs.

    Reference: 71.3 % linear top-1 at batch 256 (SimSiam, arXiv:2011.10566, table 4).
    """
    return replace(imagenet_r50_100ep(), epochs=800)


def imagenet_r50_patches_100ep() -> Recipe:
    """ResNet-50 on ImageNet, 100 epochs, with Fast-MoCo's patches, heads and optimizer.

    Reference: 71.7 % linear top-1 (Fast-MoCo, arXiv:2207.08220, appendix, table 3).
    """
    method = SimSiamConfig(heads="fast_moco", patches=Patches())
    return replace(fast_moco.imagenet_r50_100ep(), method=method)


def cifar10_fastsiam_r18_200ep() -> Recipe:
    """FastSiam: four views, ResNet-18 on CIFAR-10, 200 epochs, batch 128.

    Reference: 90.6 % kNN (k = 200) (lightly, CIFAR-10 benchmark, best epoch).
    """
    return cifar10(
        SimSiamConfig(num_views=4, num_layers=2, last_norm="both"),
        without_blur(moco_v2(32, num_views=4)),
        Optim(lr=0.06, scale="none", weight_decay=5e-4, schedule=Schedule(per_epoch=True)),
        epochs=200,
        batch_size=128,
    )


def cifar10_r18_800ep() -> Recipe:
    """ResNet-18 on CIFAR-10, 800 epochs.

    Reference: 91.8 % linear top-1 (SimSiam, arXiv:2011.10566, appendix D).
    """
    return cifar10(
        SimSiamConfig(num_layers=2),
        without_blur(moco_v2(32)),
        Optim(
            lr=0.03, weight_decay=5e-4, predictor_lr="constant", schedule=Schedule(per_epoch=True)
        ),
        epochs=800,
        save_every=10,
    )


def imagenette_fastsiam_r18_200ep() -> Recipe:
    """FastSiam: four views, ResNet-18 on Imagenette at 128 pixels, 200 epochs, SimSiam's heads.

    Reference: 77.9 % kNN (lightly, Imagenette benchmark, best epoch).
    """
    return imagenette(
        cifar10_fastsiam_r18_200ep(),
        moco_v2(128, num_views=4),
        method=SimSiamConfig(num_views=4),
    )
