"""MSBReg: centroids of four views against two independent pairs."""

from selfsight.studies.study_types import Arm, Study

RECIPE = "msbreg.imagenet100_r18_k4_320ep"
NO_LOSSES = {"method.singular_weight": 0.0, "method.brownian_weight": 0.0}

STUDY = Study(
    name="msbreg_repetition",
    paper="MSBReg, supplement of arXiv:2207.03552, section 4 and table 5",
    claim="Four views help by their centroids, not by repeating the batch.",
    judged_by="Linear top-1 of centroids against two independent pairs of BYOL.",
    arms=(
        Arm(
            name="repeat",
            recipe=RECIPE,
            settings={"method.centroid": "repeat", **NO_LOSSES},
            source=(
                "none published; 78.2 % with centroids of four views (MSBReg, supplement, table 5)"
            ),
            scale="imagenet100",
        ),
        Arm(
            name="centroid",
            recipe=RECIPE,
            settings={"epochs": 300, **NO_LOSSES},
            published=78.2,
            source="MSBReg, supplement, table 5",
            scale="imagenet100",
        ),
    ),
)
