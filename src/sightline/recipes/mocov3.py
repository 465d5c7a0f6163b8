"""MoCo v3 recipes."""

from dataclasses import replace

from sightline.backbones import BackboneConfig
from sightline.methods.mocov3 import MoCoV3Config
from sightline.optim import OPTIMS, Optim, Schedule
from sightline.recipe import Data, Recipe
from sightline.views import View, moco_v3, without_blur


def imagenet_r50_100ep() -> Recipe:
    """ResNet-50 on ImageNet, 100 epochs.

    Reference: 68.9 % linear top-1 (facebookresearch/moco-v3, CONFIG.md).
    """
    return Recipe(
        method=MoCoV3Config(),
        views=moco_v3(224, min_scale=0.2),
        optim=replace(OPTIMS["lars"], lr=0.6),
        backbone=BackboneConfig(name="resnet50"),
        epochs=100,
        batch_size=4096,
        precision="bf16",
        compile=True,
    )


def imagenet_r50_300ep() -> Recipe:
    """ResNet-50 on ImageNet, 300 epochs.

    Reference: 72.8 % linear top-1 (facebookresearch/moco-v3, CONFIG.md).
    """
    return replace(imagenet_r50_100ep(), epochs=300, optim=OPTIMS["lars"])


def imagenet_r50_1000ep() -> Recipe:
    """ResNet-50 on ImageNet, 1000 epochs.

    Reference: 74.6 % linear top-1 (facebookresearch/moco-v3, CONFIG.md).
    """
    return replace(
        imagenet_r50_100ep(),
        epochs=1000,
        method=MoCoV3Config(momentum=0.996),
        optim=replace(OPTIMS["lars"], weight_decay=1.5e-6),
    )


def cifar10_r18_100ep() -> Recipe:
    """ResNet-18 on CIFAR-10, 100 epochs.

    Reference: none published at 100 epochs; solo-learn reports 93.1 % linear after 1000.
    """
    return Recipe(
        method=MoCoV3Config(temperature=0.2, hidden_dim=2048),
        views=without_blur(moco_v3(32, min_scale=0.2)),
        optim=Optim(lr=0.12, weight_decay=5e-4, schedule=Schedule(warmup_epochs=5.0)),
        backbone=BackboneConfig(name="resnet18", image_size=32),
        data=Data(store_size=32),
        epochs=100,
        batch_size=512,
        precision="bf16",
        log_every=50,
        save_every=5,
    )


def shapes() -> Recipe:
    """The built-in picture set on a CPU: the demo, some three minutes on two cores.

    Reference: none; 25 points of kNN accuracy above the untrained network are asked for.
    """
    return Recipe(
        method=MoCoV3Config(temperature=0.2, dim=64, hidden_dim=256, momentum=0.97),
        views=(View(size=32, scale=(0.3, 1.0), blur=0.0),) * 2,
        optim=Optim(name="adamw", lr=2e-3, weight_decay=0.02, schedule=Schedule(warmup_epochs=1.0)),
        backbone=BackboneConfig(name="resnet10_narrow", image_size=32),
        data=Data(store_size=32),
        epochs=20,
        batch_size=256,
        measure_every=5,
    )
