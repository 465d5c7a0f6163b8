"""MSBReg: BYOL with the uniformity loss, the control of its two losses, at equal epochs."""

from typing import Any

from selfsight.studies.study_types import Arm, Study

TABLE_3 = "MSBReg, supplement, table 3"
UNSTATED_WEIGHT = f"at a weight that is not stated; {TABLE_3}"

# BYOL is two views without the added losses.
TWO_VIEWS: dict[str, Any] = {"method.num_views": 2, "optim.lr": 0.4 * 2}
BYOL = TWO_VIEWS | {"method.singular_weight": 0.0, "method.brownian_weight": 0.0}

# Name, changed settings, linear top-1 and its source.
ROWS: list[tuple[str, dict[str, Any], float, str]] = [
    *(
        (f"weight_{100 * w:03.0f}", BYOL | {"method.uniformity_weight": w}, 72.1, UNSTATED_WEIGHT)
        for w in (0.1, 0.5, 1.0)
    ),
    ("byol", BYOL, 71.9, TABLE_3),
    ("byol_both_losses", TWO_VIEWS, 72.8, TABLE_3),
    ("k4", {}, 80.4, TABLE_3),
]

STUDY = Study(
    name="msbreg_uniformity",
    paper="MSBReg, supplement of arXiv:2207.03552, table 3",
    claim="The uniformity loss helps BYOL less than the singular-value and Brownian losses do.",
    judged_by=(
        "Linear top-1 of the best weight against byol_both_losses, and of both against byol; "
        "alignment and uniformity of each (selfsight evaluate --protocol analysis)."
    ),
    arms=tuple(
        Arm(
            name=name,
            recipe="msbreg.imagenet100_r18_k4_320ep",
            settings=settings,
            published=top1,
            source=source,
            scale="imagenet100",
        )
        for name, settings, top1, source in ROWS
    ),
)
