"""SiMo: the momentum teacher and batch norm over the global batch."""

from selfsight.studies.study_types import Arm, Study

PAPER = "EqCo, arXiv:2010.01929"
RECIPE = "simo.imagenet_r50_100ep"

STUDY = Study(
    name="simo_momentum_and_bn",
    paper=f"{PAPER}, tables 3 and 4",
    claim="SiMo needs the momentum teacher, and batch norm over the global batch.",
    judged_by="Linear top-1 of the baseline against each of the two others.",
    arms=(
        Arm(name="baseline", recipe=RECIPE, published=64.4, source=f"{PAPER}, tables 3 and 4"),
        # The teacher is the student of the previous step.
        Arm(
            name="no_momentum",
            recipe=RECIPE,
            settings={"method.momentum": 0.0},
            published=62.1,
            source=f"{PAPER}, table 3",
        ),
        Arm(
            name="shuffled_bn",
            recipe=RECIPE,
            settings={"method.bn": "shuffle"},
            published=58.8,
            source=f"{PAPER}, table 4",
        ),
    ),
)
