"""EqCo: accuracy against the number of queries per step."""

from selfsight.studies.study_types import Arm, Study

PAPER = "EqCo, arXiv:2010.01929"

STUDY = Study(
    name="eqco_queries",
    paper=f"{PAPER}, table 1",
    claim="With the learning rate in proportion, the number of queries per step hardly matters.",
    judged_by="The spread of linear top-1 over the batch sizes.",
    arms=(
        Arm(
            name="batch256",
            recipe="moco.imagenet_v2_200ep",
            published=67.5,
            source="facebookresearch/moco, README",
        ),
        *(
            Arm(
                name=f"batch{batch_size}",
                recipe="moco.imagenet_v2_200ep",
                settings={"batch_size": batch_size},
                published=top1,
                source=f"{PAPER}, table 1",
            )
            for batch_size, top1 in {512: 67.5, 1024: 67.4}.items()
        ),
    ),
)
