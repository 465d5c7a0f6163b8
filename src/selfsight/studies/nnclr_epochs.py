"""NNCLR: accuracy against the number of epochs."""

from selfsight.studies.study_types import Arm, Study

STUDY = Study(
    name="nnclr_epochs",
    paper="NNCLR, arXiv:2104.14548",
    claim="Accuracy grows with the number of epochs.",
    judged_by="The order of linear top-1 over epochs.",
    arms=tuple(
        Arm(
            name=f"{epochs}ep",
            recipe="nnclr.imagenet_r50_1000ep",
            settings={"epochs": epochs},
            published=top1,
            source="NNCLR, arXiv:2104.14548",
        )
        for epochs, top1 in {100: 69.4, 200: 70.7, 400: 74.2, 800: 74.9, 1000: 75.4}.items()
    ),
)
