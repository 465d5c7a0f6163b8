"""Fast-MoCo and MoCo v3 with AdamW."""

from selfsight.optim import OPTIMS
from selfsight.studies.study_types import Arm, Study
from selfsight.views import moco_v3

SOURCE = "Fast-MoCo, arXiv:2207.08220, appendix C.4"

STUDY = Study(
    name="fast_moco_adamw",
    paper=SOURCE,
    claim="Fast-MoCo beats MoCo v3 with AdamW too, under the same setting.",
    judged_by="Linear top-1 of fast_moco_mocov3_setting against mocov3.",
    arms=(
        Arm(
            name="mocov3",
            recipe="mocov3.imagenet_r50_100ep",
            settings={"optim": OPTIMS["adamw"]},
            published=69.3,
            source=SOURCE,
        ),
        # "The same setting" is not described: once MoCo v3's batch, views and schedule,
        Arm(
            name="fast_moco_mocov3_setting",
            recipe="fast_moco.imagenet_r50_100ep",
            settings={
                "optim": OPTIMS["adamw"],
                "batch_size": 4096,
                "views": moco_v3(224, min_scale=0.2),
            },
            published=71.7,
            source=SOURCE,
        ),
        # and once only its learning rate and decay.
        Arm(
            name="fast_moco",
            recipe="fast_moco.imagenet_r50_adamw_100ep",
            published=71.7,
            source=SOURCE,
        ),
    ),
)
