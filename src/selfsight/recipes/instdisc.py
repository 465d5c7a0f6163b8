"""InstDisc recipes."""

from dataclasses import replace

from selfsight.methods.instdisc import InstDiscConfig
from selfsight.optim import Optim, Schedule
from selfsight.recipe import Recipe
from selfsight.recipes.shared_settings import RESNET18, cifar10, imagenet
from selfsight.views import moco_v1

STEPS = Schedule(name="step", milestones=(120.0, 160.0), per_epoch=True)


def imagenet_r50_200ep() -> Recipe:
    """ResNet-50 on ImageNet, NCE with 4096 noise samples, 200 epochs: the released code's setting.

    Reference: 46.8 % kNN (zhirongw/lemniscate.pytorch, README); 54.0 % linear top-1 (EqCo,
    arXiv:2010.01929, table 2).
    """
    return imagenet(
        InstDiscConfig(), moco_v1(224)[:1], Optim(schedule=STEPS), epochs=200, batch_size=256
    )


def imagenet_r50_200ep_proximal() -> Recipe:
    """ResNet-50 on ImageNet, 200 epochs, proximal term, memory momentum 0: the paper's setting.

    Reference: 46.5 % kNN, 54.0 % linear top-1 (InstDisc, arXiv:1805.01978, table 2).
    """
    config = InstDiscConfig(proximal_lambda=30.0, memory_momentum=0.0)
    return replace(imagenet_r50_200ep(), method=config)


def imagenet_r50_200ep_softmax() -> Recipe:
    """ResNet-50 on ImageNet, 200 epochs, full softmax over all images in place of NCE.

    Reference: 58.5 % linear top-1 (released code, softmax over 65536 negatives; ours is over all).
    """
    return replace(imagenet_r50_200ep(), method=InstDiscConfig(loss="softmax"))


def imagenet_r18_200ep() -> Recipe:
    """ResNet-18 on ImageNet, NCE, 200 epochs.

    Reference: 41.0 % kNN (zhirongw/lemniscate.pytorch, README).
    """
    return replace(imagenet_r50_200ep(), backbone=RESNET18)


def cifar10_r18_200ep() -> Recipe:
    """ResNet-18 on CIFAR-10, full softmax, 200 epochs: the released command, which never flips.

    Reference: 80.8 % kNN (InstDisc, arXiv:1805.01978, table 1).
    """
    (view,) = moco_v1(32)[:1]
    return cifar10(
        InstDiscConfig(loss="softmax", temperature=0.1),
        (replace(view, flip=0.0, order=("jitter", "gray", "flip")),),
        Optim(lr=0.03, scale="none", weight_decay=5e-4, schedule=STEPS),
        epochs=200,
        batch_size=128,
        log_every=100,
    )
