"""Fast-MoCo: the stage of the network at which two halves of a view are combined."""

from selfsight.studies.study_types import Arm, Study

STAGES = ("input", "stage1", "stage2", "stage3", "final", "proj", "pred")

STUDY = Study(
    name="fast_moco_combine_stage",
    paper="Fast-MoCo, arXiv:2207.08220, appendix C.5",
    claim="Accuracy falls when patches are combined after the projector.",
    judged_by="Linear top-1 of `final` against `proj` and `pred`.",
    arms=tuple(
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
)
