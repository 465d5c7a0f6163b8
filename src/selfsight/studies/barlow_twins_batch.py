"""Barlow Twins: batch size at 300 epochs."""

from selfsight.studies.study_types import Arm, Study

SOURCE = "Barlow Twins, as quoted by Fast-MoCo, table 4"

STUDY = Study(
    name="barlow_twins_batch",
    paper=SOURCE,
    claim="Barlow Twins needs no large batch.",
    judged_by="The spread of linear top-1 over the batch sizes.",
    arms=tuple(
        Arm(
            name=f"batch{batch_size}",
            recipe="barlow_twins.imagenet_r50_1000ep",
            settings={"epochs": 300, "batch_size": batch_size},
            published=top1,
            source=SOURCE,
        )
        for batch_size, top1 in {256: 70.7, 512: 71.4, 1024: 71.7}.items()
    ),
)
