"""Fast-MoCo: the stage of the network at which two halves of a view are combined."""

from selfsight.studies.study_types import Arm, Claim, Study, cifar10_arm

STAGES = ("input", "stage1", "stage2", "stage3", "final", "proj", "pred")

STUDY = Study(
    name="fast_moco_combine_stage",
    paper="Fast-MoCo, arXiv:2207.08220, appendix C.5",
    claim="Accuracy falls when patches are combined after the projector.",
    judged_by="Linear top-1 of `final` against `proj` and `pred`.",
    arms=(
        *(
            Arm(
                name=stage,
                recipe="fast_moco.imagenet_r50_20ep",
                settings={"method.patches.stage": stage, "method.patches.pairs": "adjacent"},
                source=(
                    "a curve without numbers; it falls after the projector "
                    "(arXiv:2207.08220, appendix C.5)"
                ),
            )
            for stage in STAGES
        ),
        # 50 epochs; the three that decide first.
        *(
            cifar10_arm(
                stage,
                "fast_moco.cifar10_r18_200ep",
                {"method.patches.stage": stage, "method.patches.pairs": "adjacent"},
                like=stage,
                line="adjacent pairs",
                x=STAGES.index(stage),
            )
            for stage in ("final", "proj", "pred", *STAGES[:4])
        ),
    ),
    varied="stage: 0 input, 4 final, 5 projector, 6 predictor",
    claims=tuple(
        Claim(
            text=f"Combining before the projector is better than after the {title}.",
            better="cifar10_final",
            than=f"cifar10_{stage}",
        )
        for stage, title in (("proj", "projector"), ("pred", "predictor"))
    ),
)
