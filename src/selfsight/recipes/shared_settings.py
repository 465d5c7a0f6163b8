"""Settings that the recipes of one data set share: sizes, network, precision, logging."""

from dataclasses import replace
from typing import Any

from selfsight.backbones import BackboneConfig
from selfsight.methods import MethodConfig
from selfsight.optim import Optim, Schedule
from selfsight.recipe import Data, Recipe
from selfsight.views import View

RESNET18 = BackboneConfig(name="resnet18")
RESNET50 = BackboneConfig(name="resnet50")
# Some released code starts residual branches at zero, some does not.
RESNET50_ZERO = replace(RESNET50, zero_init_residual=True)

# lightly's CIFAR-10 benchmark: 0.06 at batch 128, scaled by its rule.
CIFAR_SGD = Optim(lr=0.12, weight_decay=5e-4, schedule=Schedule())
CIFAR_SGD_WARM = replace(CIFAR_SGD, schedule=Schedule(warmup_epochs=5.0))
# The best of those tried for MoCo v2 on held-out images: docs/results.md.
CIFAR_SGD_LOW_DECAY = Optim(lr=0.3, weight_decay=1e-4, schedule=Schedule(warmup_epochs=10.0))


def imagenet(
    method: MethodConfig,
    views: tuple[View, ...],
    optim: Optim,
    backbone: BackboneConfig = RESNET50,
    *,
    epochs: int,
    batch_size: int,
) -> Recipe:
    """Build a recipe for large images on GPUs: bf16, compiled."""
    return Recipe(
        method=method,
        views=views,
        optim=optim,
        backbone=backbone,
        epochs=epochs,
        batch_size=batch_size,
        precision="bf16",
        compile=True,
    )


def imagenet100(recipe: Recipe) -> Recipe:
    """Change to JCL's setting (supplement, section 4): ResNet-18, batch 128, lr 0.1, 100 epochs."""
    optim = Optim(lr=0.1, scale="none")
    recipe = replace(recipe, optim=optim, backbone=RESNET18, epochs=100, batch_size=128)
    return with_imagenet100_classes(recipe)


def with_imagenet100_classes(recipe: Recipe) -> Recipe:
    """Select the 100 classes of ImageNet-100 from ImageNet: CMC's list, which JCL prints too."""
    return replace(recipe, data=replace(recipe.data, classes=("imagenet100",)))


def cifar10(
    method: MethodConfig,
    views: tuple[View, ...],
    optim: Optim = CIFAR_SGD,
    *,
    epochs: int,
    batch_size: int = 512,
    zero_init_residual: bool = False,
    **settings: Any,
) -> Recipe:
    """Build a recipe for ResNet-18 with the low-resolution stem on images of 32 pixels."""
    return Recipe(
        method=method,
        views=views,
        optim=optim,
        backbone=BackboneConfig(
            name="resnet18", image_size=32, zero_init_residual=zero_init_residual
        ),
        data=Data(store_size=32),
        epochs=epochs,
        batch_size=batch_size,
        **{"precision": "bf16", "log_every": 50, "save_every": 5, **settings},
    )


def imagenette(recipe: Recipe, views: tuple[View, ...], **changes: Any) -> Recipe:
    """Change a CIFAR-10 recipe to views of 128 pixels, batch 256, 200 epochs."""
    return replace(
        recipe,
        views=views,
        backbone=replace(recipe.backbone, image_size=128),
        data=Data(store_size=160),
        epochs=200,
        batch_size=256,
        **changes,
    )
