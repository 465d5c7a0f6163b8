"""MSBReg recipes; the tables are those of the supplement of arXiv:2207.03552."""

from dataclasses import replace
from functools import partial
from typing import Literal

from selfsight.methods.msbreg import MSBRegConfig
from selfsight.optim import OPTIMS, Optim
from selfsight.recipe import Data, Recipe
from selfsight.recipes.base import CIFAR_SGD_WARM, RESNET18, RESNET50, cifar10, imagenet, imagenette
from selfsight.recipes.grid import cell
from selfsight.views import msbreg, without_blur

Norm = Literal["bn", "ln"]

# Table 5 of the supplement: linear top-1 by K, lambda_s (rows) and lambda_b (columns).
LAMBDAS_S = (0.0, 0.002, 0.004, 0.01)
LAMBDAS_B = (0.0, 0.25, 0.5, 1.0, 2.0)
TABLE_5 = {
    2: (
        (71.9, 72.3, 72.8, 72.3, 71.9),
        (72.2, 72.4, 72.4, 72.1, 71.9),
        (72.8, 72.8, 72.4, 72.1, 71.2),
        (71.1, 71.0, 71.0, 70.7, 70.3),
    ),
    4: (
        (78.2, 79.1, 79.7, 79.2, 79.0),
        (78.9, 78.8, 79.1, 79.2, 79.2),
        (79.7, 80.2, 80.4, 80.1, 79.9),
        (79.3, 79.4, 79.2, 79.2, 79.0),
    ),
    8: (
        (79.5, 80.1, 80.3, 80.3, 80.2),
        (79.8, 80.2, 80.9, 81.1, 80.8),
        (80.0, 80.9, 81.6, 81.5, 81.3),
        (79.9, 81.2, 81.4, 81.1, 79.8),
    ),
}


def _lars(base: float, num_views: int) -> Optim:
    """The rate of the supplement, section 1.1: base x batch / 256 x K."""
    return replace(OPTIMS["lars"], lr=base * num_views, weight_decay=1e-5)


def _imagenet100(method: MSBRegConfig, *, epochs: int = 320) -> Recipe:
    """ResNet-18 on ImageNet-100; its class list is given by --classes."""
    return imagenet(
        method,
        msbreg(224, num_views=method.num_views),
        _lars(0.4, method.num_views),
        RESNET18,
        epochs=epochs,
        batch_size=512,
    )


def _stl10(method: MSBRegConfig, *, norm: Norm, batch_size: int) -> Recipe:
    """ResNet-18 on STL-10, unlabeled and training images."""
    large = imagenet(
        replace(method, norm=norm),
        msbreg(96, num_views=method.num_views),
        _lars(0.5, method.num_views),
        replace(RESNET18, image_size=96),
        epochs=320,
        batch_size=batch_size,
    )
    return replace(large, data=Data(store_size=96))


def imagenet_r50_300ep() -> Recipe:
    """ResNet-50 on ImageNet, four views, 300 epochs, with the lambdas of ImageNet-100.

    Reference: 41.8 box and 37.8 mask AP on COCO (supplement, table 2); its lambdas and its linear
    accuracy are in the main paper only.
    """
    return replace(
        _imagenet100(MSBRegConfig(dim=256, hidden_dim=4096), epochs=300),
        optim=_lars(0.15, 4),
        backbone=RESNET50,
    )


def imagenet100_r18_k4_320ep() -> Recipe:
    """ResNet-18 on ImageNet-100, four views, 320 epochs.

    Reference: 80.4 % linear top-1 (MSBReg, supplement, table 3).
    """
    return _imagenet100(MSBRegConfig())


def imagenet100_r18_k8_320ep() -> Recipe:
    """ResNet-18 on ImageNet-100, eight views, 320 epochs.

    Reference: 81.6 % linear top-1 (MSBReg, supplement, table 5, after 300 epochs).
    """
    return _imagenet100(MSBRegConfig(num_views=8))


def imagenet100_r18_repeat() -> Recipe:
    """The control of batch repetition: four views as two independent pairs of BYOL.

    Reference: none published; 78.2 % with centroids of four views (supplement, table 5).
    """
    config = MSBRegConfig(centroid="repeat", singular_weight=0.0, brownian_weight=0.0)
    return _imagenet100(config)


def cifar10_r18_100ep() -> Recipe:
    """ResNet-18 on CIFAR-10, four views, 100 epochs.

    Reference: none published; BYOL reaches 86.8 % kNN (k = 200) after 200 epochs (lightly).
    """
    return cifar10(
        MSBRegConfig(), without_blur(msbreg(32, num_views=4)), CIFAR_SGD_WARM, epochs=100
    )


def imagenette_r18_200ep() -> Recipe:
    """ResNet-18 on Imagenette at 128 pixels, four views, 200 epochs.

    Reference: none published; BYOL reaches 88.7 % kNN after 800 (lightly, Imagenette benchmark).
    """
    return imagenette(cifar10_r18_100ep(), msbreg(128, num_views=4))


# BYOL is two views without the added losses.
_byol = partial(MSBRegConfig, num_views=2, singular_weight=0.0)
_ours = partial(MSBRegConfig, num_views=4)

# Table 4 of the supplement: method, norm, batch, lambda_b, linear top-1. K is not stated there.
TABLE_4: list[tuple[str, Norm, int, float, float]] = [
    ("byol", "bn", 256, 0.0, 89.5),
    ("ours", "bn", 256, 5e-2, 91.4),
    ("byol", "ln", 256, 0.0, 10.6),
    ("byol", "ln", 256, 5e-3, 75.3),
    ("byol", "ln", 1024, 0.0, 10.6),
    ("ours", "ln", 256, 5e-4, 80.7),
    ("ours", "ln", 256, 5e-3, 82.3),
    ("ours", "ln", 256, 5e-2, 78.7),
]

# Names hold lambda_s in thousandths, lambda_b in hundredths; for STL-10 in ten-thousandths.
GRID = (
    {
        f"imagenet100_k{k}_s{1000 * s:03.0f}_b{100 * b:03.0f}": cell(
            partial(
                _imagenet100,
                MSBRegConfig(num_views=k, singular_weight=s, brownian_weight=b),
                epochs=300,
            ),
            f"ResNet-18 on ImageNet-100, {k} views, lambda_s {s:g}, lambda_b {b:g}, 300 epochs.",
            f"{found} % linear top-1 (MSBReg, supplement, table 5)",
        )
        for k, rows in TABLE_5.items()
        for s, row in zip(LAMBDAS_S, rows, strict=True)
        for b, found in zip(LAMBDAS_B, row, strict=True)
    }
    | {
        f"imagenet100_uniformity_{100 * weight:03.0f}": cell(
            partial(_imagenet100, _byol(brownian_weight=0.0, uniformity_weight=weight)),
            f"The control of BYOL with {weight:g} times the uniformity loss, ImageNet-100.",
            "72.1 % linear top-1, at a weight that is not stated (MSBReg, supplement, table 3)",
        )
        for weight in (0.1, 0.5, 1.0)
    }
    | {
        f"stl10_{kind}_{norm}_{batch}_b{10000 * b:03.0f}": cell(
            partial(
                _stl10,
                {"byol": _byol, "ours": _ours}[kind](brownian_weight=b),
                norm=norm,
                batch_size=batch,
            ),
            f"ResNet-18 with {norm.upper()} on STL-10, "
            f"{'BYOL' if kind == 'byol' else 'four views'}, lambda_b {b:g}, batch {batch}.",
            f"{found} % linear top-1 (MSBReg, supplement, table 4)",
        )
        for kind, norm, batch, b, found in TABLE_4
    }
)
