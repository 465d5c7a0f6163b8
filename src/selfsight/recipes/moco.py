"""MoCo v1 and v2 recipes, and EqCo's margin on them (arXiv:2010.01929)."""

from dataclasses import replace
from functools import partial

from selfsight.methods.moco import MoCoConfig
from selfsight.optim import Optim, Schedule
from selfsight.recipe import Recipe
from selfsight.recipes.base import cifar10, imagenet, imagenet100, imagenette
from selfsight.recipes.grid import cell
from selfsight.views import moco_v1, moco_v2, without_blur


def imagenet_v1_200ep() -> Recipe:
    """MoCo v1, ResNet-50 on ImageNet, 200 epochs.

    Reference: 60.6 % linear top-1 (facebookresearch/moco, README).
    """
    return imagenet(
        MoCoConfig(mlp=False, temperature=0.07),
        moco_v1(224),
        Optim(schedule=Schedule(name="step", milestones=(120.0, 160.0), per_epoch=True)),
        epochs=200,
        batch_size=256,
    )


def imagenet_v2_200ep() -> Recipe:
    """MoCo v2, ResNet-50 on ImageNet, 200 epochs.

    Reference: 67.5 % linear top-1 (facebookresearch/moco, README).
    """
    return replace(imagenet_v1_200ep(), method=MoCoConfig(), views=moco_v2(224), optim=Optim())


def imagenet_v2_800ep() -> Recipe:
    """MoCo v2, ResNet-50 on ImageNet, 800 epochs.

    Reference: 71.1 % linear top-1 (facebookresearch/moco, README).
    """
    return replace(imagenet_v2_200ep(), epochs=800)


def cifar10_r18_200ep() -> Recipe:
    """MoCo v2, ResNet-18 on CIFAR-10, 200 epochs, one direction.

    Reference: 84.7 % kNN (k = 200), symmetric loss (lightly, CIFAR-10 benchmark, batch 512).
    """
    return cifar10(
        MoCoConfig(queue_size=4096, temperature=0.1, momentum=0.99, bn_group=64),
        without_blur(moco_v2(32)),
        epochs=200,
    )


def imagenet100_r18_100ep() -> Recipe:
    """MoCo v2, ResNet-18 on ImageNet-100, 100 epochs: what JCL is compared with.

    Reference: none printed; the settings are those of JCL's supplement (sections 4 and 5).
    """
    return imagenet100(imagenet_v2_200ep())


def imagenette_r18_200ep() -> Recipe:
    """MoCo v2, ResNet-18 on Imagenette at 128 pixels, 200 epochs, one direction.

    Reference: 87.4 % kNN after 800, symmetric loss (lightly, Imagenette benchmark).
    """
    return imagenette(
        cifar10_r18_200ep(),
        moco_v2(128),
        method=MoCoConfig(queue_size=4096, temperature=0.1, momentum=0.99),
    )


def imagenette_r18_eqco_k16() -> Recipe:
    """The same with 16 negatives that EqCo lets stand for 4096.

    Reference: none published; EqCo claims the accuracy of the 4096 (arXiv:2010.01929, figure 2).
    """
    method = MoCoConfig(queue_size=16, alpha=4096.0, temperature=0.1, momentum=0.99)
    return replace(imagenette_r18_200ep(), method=method)


def _v1(queue_size: int, alpha: float | None = None) -> Recipe:
    config = MoCoConfig(mlp=False, temperature=0.07, queue_size=queue_size, alpha=alpha)
    return replace(imagenet_v1_200ep(), method=config)


def _v2(queue_size: int, alpha: float | None = None, *, batch_size: int = 256) -> Recipe:
    config = MoCoConfig(queue_size=queue_size, alpha=alpha)
    return replace(imagenet_v2_200ep(), method=config, batch_size=batch_size)


def _printed(table: dict[int, float], k: int, place: str = "") -> str:
    known = (
        f"{table[k]} % linear top-1 ({place})" if k in table else "drawn, not printed (figure 2)"
    )
    return f"{known}, EqCo, arXiv:2010.01929."


# Linear top-1 that the EqCo paper prints; the other points of its figure 2 are only drawn.
ALPHA = 65536.0
FIGURE_2 = (4, 16, 64, 256, 1024, 4096, 16384)  # K; the figure's ticks are not in its text
V1_PLAIN = {256: 54.7}  # section 1
V1_EQCO = {256: 60.4}  # section 1: 0.2 below the 60.6 of K = 65536
V2_PLAIN = {256: 67.0, 1024: 67.1, 4096: 67.6, 16384: 67.3, 262144: 67.4}  # table 6
V2_QUERIES = {512: 67.5, 1024: 67.4}  # table 1: larger batches at K = 65536

GRID = (
    {
        f"imagenet_v1_k{k}": cell(
            partial(_v1, k), f"MoCo v1, {k} negatives.", _printed(V1_PLAIN, k, "section 1")
        )
        for k in FIGURE_2
    }
    | {
        f"imagenet_v1_eqco_k{k}": cell(
            partial(_v1, k, ALPHA),
            f"MoCo v1, {k} negatives that EqCo lets stand for 65536.",
            _printed(V1_EQCO, k, "section 1"),
        )
        for k in FIGURE_2
    }
    | {
        f"imagenet_v2_k{k}": cell(
            partial(_v2, k), f"MoCo v2, {k} negatives.", _printed(V2_PLAIN, k, "table 6")
        )
        for k in (*FIGURE_2, 262144)
    }
    | {
        f"imagenet_v2_eqco_k{k}": cell(
            partial(_v2, k, ALPHA),
            f"MoCo v2, {k} negatives that EqCo lets stand for 65536.",
            _printed({}, k),
        )
        for k in FIGURE_2
    }
    | {
        f"imagenet_v2_batch{n}": cell(
            partial(_v2, 65536, batch_size=n),
            f"MoCo v2, {n} queries a step, the learning rate in proportion.",
            _printed(V2_QUERIES, n, "table 1"),
        )
        for n in V2_QUERIES
    }
)
