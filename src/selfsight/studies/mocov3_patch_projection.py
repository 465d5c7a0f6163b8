"""MoCo v3: a frozen random patch projection against a learned one."""

from selfsight.studies.base import Arm, Study

# Linear top-1 by learning rate in units of 1e-4.
LEARNED = {0.5: 70.4, 1.0: 72.2, 1.5: 71.7}
RANDOM = {0.5: 70.8, 1.0: 72.8, 1.5: 73.4}

STUDY = Study(
    name="mocov3_patch_projection",
    paper="MoCo v3, arXiv:2104.02057, section 4.2",
    claim="A frozen random patch projection trains more steadily and to a higher accuracy.",
    judged_by=(
        "Linear top-1 of random against learned at each learning rate; "
        "dips of the kNN curve, counted."
    ),
    arms=tuple(
        Arm(
            name=f"{projection}_lr{10 * lr:02.0f}",
            recipe="mocov3.imagenet_vit_b16_300ep",
            settings={
                "epochs": 100,
                "optim.lr": lr * 1e-4,
                "backbone.freeze_patch": projection == "random",
            },
            published=top1,
            source="MoCo v3, section 4.2",
        )
        for projection, numbers in (("learned", LEARNED), ("random", RANDOM))
        for lr, top1 in numbers.items()
    ),
)
