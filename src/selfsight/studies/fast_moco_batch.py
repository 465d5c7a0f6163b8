"""Fast-MoCo: batch size at 100 epochs."""

from selfsight.studies.base import Arm, Study

STUDY = Study(
    name="fast_moco_batch",
    paper="Fast-MoCo, arXiv:2207.08220, appendix, table 4",
    claim="Fast-MoCo needs no large batch.",
    judged_by="The spread of linear top-1 over the batch sizes.",
    arms=tuple(
        Arm(
            name=f"batch{batch_size}",
            recipe="fast_moco.imagenet_r50_100ep",
            settings={"batch_size": batch_size},
            published=top1,
            source="arXiv:2207.08220, appendix, table 4",
        )
        for batch_size, top1 in {256: 72.5, 512: 73.5, 1024: 73.6}.items()
    ),
)
