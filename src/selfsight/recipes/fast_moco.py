"""Fast-MoCo recipes."""

from dataclasses import replace

from selfsight.methods.fast_moco import FastMoCoConfig
from selfsight.optim import Optim, Schedule
from selfsight.recipe import Recipe
from selfsight.recipes.shared_settings import RESNET50_ZERO, cifar10, imagenet, imagenette
from selfsight.views import moco_v2, without_blur

# 0.1 at batch 512; the predictor's learning rate stays at the peak, as in the released code.
SGD = Optim(
    lr=0.05,
    clip=1.0,
    predictor_lr="constant",
    schedule=Schedule(warmup_epochs=1, warmup_start=0.25),
)


def imagenet_r50_100ep() -> Recipe:
    """ResNet-50 on ImageNet, 100 epochs.

    Reference: 73.5 % linear top-1 (orashi/Fast-MoCo, README; arXiv:2207.08220, table 4).
    """
    return imagenet(
        FastMoCoConfig(),
        moco_v2(224, interpolation="bicubic"),
        SGD,
        RESNET50_ZERO,
        epochs=100,
        batch_size=512,
    )


def imagenet_r50_200ep() -> Recipe:
    """ResNet-50 on ImageNet, 200 epochs.

    Reference: 75.1 % linear top-1 (orashi/Fast-MoCo, README).
    """
    return replace(imagenet_r50_100ep(), epochs=200)


def imagenet_r50_400ep() -> Recipe:
    """ResNet-50 on ImageNet, 400 epochs.

    Reference: 75.5 % linear top-1 (orashi/Fast-MoCo, README).
    """
    return replace(imagenet_r50_100ep(), epochs=400)


def imagenet_r50_20ep() -> Recipe:
    """ResNet-50 on ImageNet, 20 epochs at 1.5 times the learning rate: the length of the ablations.

    Reference: none in what we could read (the setting is arXiv:2207.08220, appendix, table 1).
    """
    return replace(imagenet_r50_100ep(), epochs=20, optim=replace(SGD, lr=0.075))


def imagenet_r50_adamw_100ep() -> Recipe:
    """ResNet-50 on ImageNet, 100 epochs with AdamW at MoCo v3's learning rate.

    Reference: 71.7 % linear top-1, beside 69.3 % of MoCo v3 (arXiv:2207.08220, appendix C.4).
    """
    optim = replace(SGD, name="adamw", lr=1.5e-4, weight_decay=0.1)
    return replace(imagenet_r50_100ep(), optim=optim)


def imagenet_r50_multicrop_100ep() -> Recipe:
    """ResNet-50 on ImageNet, 100 epochs, with a third view as an additional sample.

    Reference: none in what we could read (the setting is arXiv:2207.08220, appendix B.5).
    """
    return replace(
        imagenet_r50_100ep(),
        method=FastMoCoConfig(multicrop=True),
        views=moco_v2(224, interpolation="bicubic", num_views=3),
    )


def cifar10_r18_200ep() -> Recipe:
    """ResNet-18 on CIFAR-10, 200 epochs.

    Reference: none published.
    """
    return cifar10(
        FastMoCoConfig(temperature=0.2),
        without_blur(moco_v2(32, interpolation="bicubic")),
        replace(SGD, lr=0.15, weight_decay=5e-4, schedule=Schedule(warmup_epochs=5.0)),
        epochs=200,
        zero_init_residual=True,
    )


def imagenette_r18_200ep() -> Recipe:
    """ResNet-18 on Imagenette at 128 pixels, 200 epochs.

    Reference: none published; MoCo reaches 87.4 % kNN in 800 epochs (lightly, Imagenette
    benchmark).
    """
    return imagenette(
        cifar10_r18_200ep(), moco_v2(128, interpolation="bicubic"), optim=SGD, log_every=20
    )
