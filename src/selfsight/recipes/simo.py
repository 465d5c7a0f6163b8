"""SiMo recipes; tables and figures are those of the EqCo paper (arXiv:2010.01929)."""

from selfsight.backbones import BackboneConfig
from selfsight.methods.simo import SiMoConfig
from selfsight.optim import Optim, Schedule
from selfsight.recipe import Recipe
from selfsight.recipes.shared_settings import cifar10, imagenet, imagenette
from selfsight.views import simo, without_blur


def _imagenet(method: SiMoConfig, *, epochs: int = 200, backbone: str = "resnet50") -> Recipe:
    """Ten warm-up epochs from a thousandth of the learning rate; the cosine starts at epoch 0."""
    schedule = Schedule(warmup_epochs=10, warmup_start=0.001, shifted=False)
    return imagenet(
        method,
        simo(224),
        Optim(schedule=schedule),
        BackboneConfig(name=backbone, zero_init_residual=True),
        epochs=epochs,
        batch_size=256,
    )


def imagenet_r50_200ep() -> Recipe:
    """ResNet-50 on ImageNet, K = 256 (255 in a batch of 256), alpha = 256, 200 epochs.

    Reference: 68.0 % linear top-1 (EqCo, arXiv:2010.01929, table 2).
    """
    return _imagenet(SiMoConfig())


def imagenet_r50_100ep() -> Recipe:
    """ResNet-50 on ImageNet, 100 epochs: the baseline of the ablations.

    Reference: 64.4 % linear top-1 (EqCo, arXiv:2010.01929, tables 3 and 4).
    """
    return _imagenet(SiMoConfig(), epochs=100)


def cifar10_r18_200ep() -> Recipe:
    """ResNet-18 on CIFAR-10, 16 negatives, alpha = 4096, 200 epochs.

    Reference: none published; MoCo v2 reaches 84.7 % kNN (lightly, CIFAR-10 benchmark).
    """
    return cifar10(
        SiMoConfig(num_negatives=16, alpha=4096.0, temperature=0.1, momentum=0.99),
        without_blur(simo(32)),
        Optim(lr=0.12, weight_decay=5e-4, schedule=Schedule(warmup_epochs=10, shifted=False)),
        epochs=200,
        zero_init_residual=True,
    )


def imagenette_r18_200ep() -> Recipe:
    """ResNet-18 on Imagenette at 128 pixels, 16 negatives, alpha = 4096, 200 epochs.

    Reference: none published; MoCo v2 reaches 87.4 % kNN after 800 (lightly, Imagenette benchmark).
    """
    return imagenette(cifar10_r18_200ep(), simo(128))
