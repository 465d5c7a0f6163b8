"""MSBReg: BYOL with the uniformity loss, the control of its two losses."""

from selfsight.studies.base import Arm, Study

STUDY = Study(
    name="msbreg_uniformity",
    paper="MSBReg, supplement of arXiv:2207.03552, table 3",
    claim="The uniformity loss helps BYOL less than the singular-value and Brownian losses do.",
    judged_by="Linear top-1 of the best weight against the best of msbreg_lambdas at K = 2.",
    arms=tuple(
        Arm(
            name=f"weight_{100 * weight:03.0f}",
            recipe="msbreg.imagenet100_r18_k4_320ep",
            settings={
                "method.num_views": 2,
                "method.singular_weight": 0.0,
                "method.brownian_weight": 0.0,
                "method.uniformity_weight": weight,
                "optim.lr": 0.4 * 2,
            },
            published=72.1,
            source="at a weight that is not stated; MSBReg, supplement, table 3",
            scale="imagenet100",
        )
        for weight in (0.1, 0.5, 1.0)
    ),
)
