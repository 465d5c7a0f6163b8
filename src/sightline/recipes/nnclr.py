"""NNCLR recipes."""

from dataclasses import replace
from functools import partial

from sightline.backbones import BackboneConfig
from sightline.methods.nnclr import NNCLRConfig
from sightline.nn.patches import Patches
from sightline.optim import OPTIMS, Optim, Schedule
from sightline.recipe import Data, Recipe
from sightline.recipes import fast_moco
from sightline.recipes.grid import cell
from sightline.views import byol, simclr, without_blur


def _imagenet(epochs: int) -> Recipe:
    return Recipe(
        method=NNCLRConfig(),
        views=byol(224),
        optim=OPTIMS["lars"],
        backbone=BackboneConfig(name="resnet50"),
        epochs=epochs,
        batch_size=4096,
        precision="bf16",
        compile=True,
    )


def imagenet_r50_patches_100ep() -> Recipe:
    """ResNet-50 on ImageNet, 100 epochs, with Fast-MoCo's patches, heads, teacher and optimiser.

    Reference: 72.5 % linear top-1 (Fast-MoCo, arXiv:2207.08220, appendix, table 3).
    """
    method = NNCLRConfig(
        dim=2048, predictor_dim=512, heads="fast_moco", patches=Patches(), teacher_momentum=0.99
    )
    return replace(fast_moco.imagenet_r50_100ep(), method=method)


def cifar10_r18_200ep() -> Recipe:
    """ResNet-18 on CIFAR-10, 200 epochs.

    Reference: 81.5 % kNN (k = 200) (lightly, CIFAR-10 benchmark, batch 512).
    """
    return Recipe(
        method=NNCLRConfig(temperature=0.5, queue_size=8192),
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


GRID = {
    f"imagenet_r50_{epochs}ep": cell(
        partial(_imagenet, epochs),
        f"ResNet-50 on ImageNet, {epochs} epochs.",
        f"{top1} % linear top-1 (NNCLR, arXiv:2104.14548).",
    )
    for epochs, top1 in ((100, 69.4), (200, 70.7), (400, 74.2), (800, 74.9), (1000, 75.4))
}
