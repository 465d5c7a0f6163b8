"""MoCo v3 with and without its predictor."""

from selfsight.studies.study_types import Arm, Claim, Study

STUDY = Study(
    name="mocov3_predictor",
    paper="MoCo v3, arXiv:2104.02057",
    claim="The prediction head helps, but is not needed to learn.",
    judged_by="Linear top-1 without the predictor against with it.",
    arms=(
        Arm(
            name="vit_s16",
            recipe="mocov3.imagenet_vit_s16_300ep",
            published=72.5,
            source="MoCo v3, table 4",
        ),
        Arm(
            name="vit_s16_no_predictor",
            recipe="mocov3.imagenet_vit_s16_300ep",
            settings={"method.predictor": False},
            source="none in what we could read",
        ),
        Arm(
            name="cifar10_r18",
            recipe="mocov3.cifar10_r18_100ep",
            settings={"epochs": 50},
            source="none published at this setting",
            scale="cifar10",
            like="vit_s16",
        ),
        Arm(
            name="cifar10_r18_no_predictor",
            recipe="mocov3.cifar10_r18_100ep",
            settings={"epochs": 50, "method.predictor": False},
            source="none published at this setting",
            scale="cifar10",
            like="vit_s16_no_predictor",
        ),
    ),
    claims=(
        Claim(
            text="MoCo v3 is better with its predictor than without.",
            better="cifar10_r18",
            than="cifar10_r18_no_predictor",
        ),
    ),
)
