"""Fast-MoCo: batch sizes, beside those of SimSiam and BYOL."""

from selfsight.studies.study_types import Arm, Study

TABLE_4 = "arXiv:2207.08220, appendix, table 4"

# Linear top-1 by batch size. The numbers of SimSiam and BYOL are quoted there from their papers.
FAST_MOCO = {256: 72.5, 512: 73.5, 1024: 73.6}
OTHERS = {
    "simsiam": ("simsiam.imagenet_r50_100ep", {256: 68.1, 512: 68.1, 1024: 68.0}),
    "byol": ("byol.imagenet_r50_300ep", {256: 71.9, 512: 72.2, 1024: 72.3}),
}

STUDY = Study(
    name="fast_moco_batch",
    paper=f"Fast-MoCo, {TABLE_4}",
    claim=(
        "Fast-MoCo needs no large batch: like SimSiam, BYOL and Barlow Twins (barlow_twins_batch) "
        "it loses little from 1024 to 256."
    ),
    judged_by="The spread of linear top-1 over the batch sizes, for each method.",
    arms=(
        *(
            Arm(
                name=f"batch{batch_size}",
                recipe="fast_moco.imagenet_r50_100ep",
                settings={"batch_size": batch_size},
                published=top1,
                source=TABLE_4,
            )
            for batch_size, top1 in FAST_MOCO.items()
        ),
        *(
            Arm(
                name=f"{method}_batch{batch_size}",
                recipe=recipe,
                settings={"batch_size": batch_size},
                published=top1,
                source=TABLE_4,
            )
            for method, (recipe, numbers) in OTHERS.items()
            for batch_size, top1 in numbers.items()
        ),
    ),
)
