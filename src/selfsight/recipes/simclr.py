"""SimCLR recipes."""

from dataclasses import replace

from selfsight.backbones import BackboneConfig
from selfsight.methods.simclr import SimCLRConfig
from selfsight.optim import OPTIMS, Optim, Schedule
from selfsight.recipe import Data, Recipe
from selfsight.recipes.shared_settings import RESNET50_ZERO, cifar10, imagenet
from selfsight.views import moco_v2, simclr, without_blur


def imagenet_r50_100ep() -> Recipe:
    """ResNet-50 on ImageNet, 100 epochs.

    Reference: 64.5 % linear top-1 (google-research/simclr, README).
    """
    return imagenet(
        SimCLRConfig(),
        simclr(224),
        replace(OPTIMS["lars"], variant="simclr"),
        RESNET50_ZERO,
        epochs=100,
        batch_size=4096,
    )


def imagenet_r50_200ep() -> Recipe:
    """ResNet-50 on ImageNet, 200 epochs.

    Reference: 66.6 % linear top-1 (EqCo, arXiv:2010.01929, table 2).
    """
    return replace(imagenet_r50_100ep(), epochs=200)


def imagenet_r50_1000ep() -> Recipe:
    """ResNet-50 on ImageNet, 1000 epochs.

    Reference: 69.3 % linear top-1 (SimCLR, arXiv:2002.05709, table 6).
    """
    return replace(imagenet_r50_100ep(), epochs=1000)


def cifar10_r18_200ep() -> Recipe:
    """ResNet-18 on CIFAR-10, 200 epochs.

    Reference: 84.8 % kNN (k = 200) (lightly, CIFAR-10 benchmark, batch 512).
    """
    return cifar10(
        SimCLRConfig(temperature=0.5, hidden_dim=512),
        without_blur(simclr(32, strength=0.5)),
        epochs=200,
    )


def shapes() -> Recipe:
    """The built-in data set `shapes` on a CPU: the demo, about three minutes on two cores.

    Reference: none published; the demo asks for 25 points of kNN above the untrained network.
    """
    return Recipe(
        method=SimCLRConfig(temperature=0.2, hidden_dim=128),
        views=without_blur(moco_v2(32)),
        optim=Optim(name="adamw", lr=2e-3, weight_decay=1e-4, schedule=Schedule(warmup_epochs=2.0)),
        backbone=BackboneConfig(name="resnet8_narrow", image_size=32),
        data=Data(store_size=32),
        epochs=35,
        batch_size=256,
        measure_every=5,
    )
