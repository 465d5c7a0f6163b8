"""MoCo v3: the learning rate of LAMB on ViT-B/16."""

from dataclasses import replace

from selfsight.optim import OPTIMS
from selfsight.studies.study_types import Arm, Study

STUDY = Study(
    name="mocov3_lamb",
    paper="MoCo v3, arXiv:2104.02057, figure 3",
    claim="LAMB reaches the accuracy of AdamW, but only in a narrow range of learning rates.",
    judged_by="Linear top-1 at the best learning rate against AdamW's, and against its neighbors.",
    arms=tuple(
        Arm(
            name=f"lr{lr:.0f}",
            recipe="mocov3.imagenet_vit_b16_300ep",
            settings={
                "epochs": 100,
                "optim": replace(OPTIMS["lamb"], lr=lr * 1e-4),
                "backbone.freeze_patch": False,
            },
            published=top1,
            source="MoCo v3, figure 3",
        )
        for lr, top1 in {3.0: 71.6, 5.0: 72.5, 6.0: 70.9, 8.0: 66.5}.items()
    ),
)
