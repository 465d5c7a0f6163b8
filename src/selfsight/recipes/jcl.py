"""JCL recipes."""

from selfsight.methods.jcl import JCLConfig
from selfsight.optim import Optim
from selfsight.recipe import Recipe
from selfsight.recipes.shared_settings import (
    CIFAR_SGD_LOW_DECAY,
    cifar10,
    imagenet,
    imagenet100,
    imagenette,
)
from selfsight.views import moco_v2, without_blur


def _imagenet(method: JCLConfig) -> Recipe:
    return imagenet(
        method, moco_v2(224, num_views=method.num_views), Optim(), epochs=200, batch_size=256
    )


def _imagenet100(method: JCLConfig) -> Recipe:
    """Batch 128, learning rate 0.1 (supplement, section 4, which does not state the queue size)."""
    return imagenet100(_imagenet(method))


def imagenet_r50_200ep() -> Recipe:
    """ResNet-50 on ImageNet, 5 keys, lambda 4, 200 epochs: the paper's setting.

    Reference: 68.7 % linear top-1 (JCL, arXiv:2009.14776, table 1).
    """
    return _imagenet(JCLConfig())


def imagenet_r50_200ep_script() -> Recipe:
    """ResNet-50 on ImageNet, 4 keys, lambda 2, 200 epochs: the released script's setting.

    Reference: 68.7 % linear top-1 (JCL, arXiv:2009.14776, which does not name the setting).
    """
    return _imagenet(JCLConfig(num_keys=4, strength=2.0))


def imagenet100_r18_100ep() -> Recipe:
    """ResNet-18 on ImageNet-100, 5 keys, lambda 4, temperature 0.2, 100 epochs.

    Reference: plotted, not printed (JCL, arXiv:2009.14776, figure 2).
    """
    return _imagenet100(JCLConfig())


def cifar10_r18_200ep() -> Recipe:
    """ResNet-18 on CIFAR-10, 4 keys, lambda 2, 200 epochs.

    Reference: none published; MoCo v2 reaches 84.7 % kNN (lightly, CIFAR-10 benchmark).
    """
    return cifar10(
        JCLConfig(
            num_keys=4,
            strength=2.0,
            queue_size=4096,
            temperature=0.2,
            momentum=0.99,
            bn="sync",
            bn_group=64,
        ),
        without_blur(moco_v2(32, num_views=5)),
        CIFAR_SGD_LOW_DECAY,
        epochs=200,
    )


def imagenette_r18_200ep() -> Recipe:
    """ResNet-18 on Imagenette at 128 pixels, 4 keys, lambda 2, 200 epochs.

    Reference: none published; MoCo v2 reaches 87.4 % kNN after 800 (lightly, Imagenette benchmark).
    """
    return imagenette(
        cifar10_r18_200ep(),
        moco_v2(128, num_views=5),
        method=JCLConfig(num_keys=4, strength=2.0, queue_size=4096, temperature=0.1, momentum=0.99),
    )
