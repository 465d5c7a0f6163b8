"""Fast-MoCo: combinatorial patches on other methods."""

from selfsight.studies.study_types import Arm, Study

TABLE_3 = "Fast-MoCo, arXiv:2207.08220, appendix, table 3"

STUDY = Study(
    name="fast_moco_frameworks",
    paper=TABLE_3,
    claim="Combinatorial patches improve NNCLR, BYOL and SimSiam at equal epochs.",
    judged_by="Linear top-1 of each method with patches against the same method without.",
    arms=(
        Arm(
            name="nnclr",
            recipe="nnclr.imagenet_r50_100ep",
            published=69.4,
            source="NNCLR, arXiv:2104.14548",
        ),
        Arm(
            name="nnclr_patches",
            recipe="nnclr.imagenet_r50_patches_100ep",
            published=72.5,
            source=TABLE_3,
        ),
        Arm(
            name="byol",
            recipe="byol.imagenet_r50_100ep",
            published=66.5,
            source="SimSiam's reproduction, arXiv:2011.10566, table 4",
        ),
        Arm(
            name="byol_patches",
            recipe="byol.imagenet_r50_patches_100ep",
            published=73.6,
            source=TABLE_3,
        ),
        Arm(
            name="simsiam",
            recipe="simsiam.imagenet_r50_100ep",
            published=68.1,
            source="facebookresearch/simsiam, README",
        ),
        Arm(
            name="simsiam_patches",
            recipe="simsiam.imagenet_r50_patches_100ep",
            published=71.7,
            source=TABLE_3,
        ),
    ),
)
