"""MoCo v3 with and without its predictor."""

from selfsight.studies.study_types import Arm, Claim, Study, cifar10_arm

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
        cifar10_arm("r18", "mocov3.cifar10_r18_100ep", {}),
        cifar10_arm("r18_no_predictor", "mocov3.cifar10_r18_100ep", {"method.predictor": False}),
        # A small ViT with a frozen patch projection.
        *(
            cifar10_arm(
                name,
                "mocov3.cifar10_vit_t4_200ep",
                {"optim.schedule.warmup_epochs": 10.0, **settings},
                like=like,
            )
            for name, like, settings in (
                ("vit", "vit_s16", {}),
                ("vit_no_predictor", "vit_s16_no_predictor", {"method.predictor": False}),
            )
        ),
    ),
    claims=(
        Claim(
            text="MoCo v3 is better with its predictor than without.",
            better="cifar10_r18",
            than="cifar10_r18_no_predictor",
        ),
        Claim(
            text="On a small ViT too it is better with its predictor than without.",
            better="cifar10_vit",
            than="cifar10_vit_no_predictor",
        ),
        Claim(
            text="A small ViT learns without the predictor: it loses less than 5 points.",
            better="cifar10_vit_no_predictor",
            than="cifar10_vit",
            margin=-5.0,
        ),
    ),
)
