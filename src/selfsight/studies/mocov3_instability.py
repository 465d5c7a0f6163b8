"""MoCo v3: where a ViT's training becomes unstable, on CIFAR-10."""

from typing import Any

from selfsight.studies.study_types import NONE_PUBLISHED, Arm, Study

NONE = "none published on CIFAR-10; MoCo v3, section 4, plots kNN curves of ViT-B/16 on ImageNet"

# The learning rate of the recipe is 5e-4 at batch 256; larger ones show more dips.
SETTINGS: dict[str, dict[str, Any]] = {
    "random": {},
    "learned": {"backbone.freeze_patch": False},
    "bn": {"backbone.name": "vit_bn_t4"},
    "bn_learned": {"backbone.name": "vit_bn_t4", "backbone.freeze_patch": False},
    "no_predictor": {"method.predictor": False},
    "constant_momentum": {"method.momentum_end": 0.99},
}

STUDY = Study(
    name="mocov3_instability",
    paper="MoCo v3, arXiv:2104.02057, sections 4 and 5",
    claim=(
        "Training a ViT dips without failing; the dips begin in the patch projection, and freezing "
        "it removes most of them."
    ),
    judged_by=(
        "Dips of online_knn (online_knn_dips: measurements a point or more below the best before), "
        "and the gradient norm of the first layers just before them."
    ),
    arms=(
        *(
            Arm(
                name=f"{name}_lr{10000 * lr:02.0f}",
                recipe="mocov3.cifar10_vit_t4_200ep",
                settings={"optim.lr": lr, "measure_every": 2, "log_gradients": True, **settings},
                source=NONE,
                scale="cifar10",
            )
            for lr in (5e-4, 1e-3, 2e-3)
            for name, settings in SETTINGS.items()
        ),
        Arm(
            name="supervised",
            recipe="supervised.cifar10_vit_t4_200ep",
            settings={"measure_every": 2, "log_gradients": True},
            source=NONE_PUBLISHED,
            scale="cifar10",
        ),
    ),
)
