"""SimCLR recipes."""

from dataclasses import replace

from sightline.backbones import BackboneConfig
from sightline.methods.simclr import SimCLRConfig
from sightline.optim import OPTIMS, Optim, Schedule
from sightline.recipe import Data, Recipe
from sightline.views import simclr, without_blur


def imagenet_r50_100ep() -> Recipe:
    """ResNet-50 on ImageNet, 100 epochs.

    Reference: 64.5 % linear top-1 (google-research/simclr, README).
    """
    return Recipe(
        method=SimCLRConfig(),
        views=simclr(224),
        optim=replace(OPTIMS["lars"], flavour="simclr"),
        backbone=BackboneConfig(name="resnet50"),
        epochs=100,
        batch_size=4096,
        precision="bf16",
        compile=True,
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
    return Recipe(
        method=SimCLRConfig(temperature=0.5, hidden_dim=512),
        views=without_blur(simclr(32, strength=0.5)),
        optim=Optim(lr=0.12, weight_decay=5e-4, schedule=Schedule()),
        backbone=BackboneConfig(name="resnet18", image_size=32),
        data=Data(store_size=32),
        epochs=200,
        batch_size=512,
        precision="bf16",
        log_every=50,
        save_every=5,
    )
