"""MoCo v3: ViT-B/16 without batch norm anywhere."""

from selfsight.studies.study_types import Arm, Study

STUDY = Study(
    name="mocov3_bn_free",
    paper="MoCo v3, arXiv:2104.02057, section 5",
    claim="Batch norm in the heads helps, but is not needed to learn.",
    judged_by="Linear top-1 with batch norm in the heads against none, both at batch 2048.",
    arms=(
        Arm(
            name="bn_free",
            recipe="mocov3.imagenet_vit_b16_300ep",
            settings={"batch_size": 2048, "method.head_norm": False},
            source="2.1 points below the same with batch norm (MoCo v3, section 5)",
        ),
        Arm(
            name="bn",
            recipe="mocov3.imagenet_vit_b16_300ep",
            settings={"batch_size": 2048},
            source="2.1 points above the same without batch norm (MoCo v3, section 5)",
        ),
    ),
)
