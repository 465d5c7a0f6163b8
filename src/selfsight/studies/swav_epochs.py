"""SwAV: accuracy against epochs, batch size and small crops."""

from selfsight.studies.study_types import Arm, Study

SOURCE = "facebookresearch/swav, README"

STUDY = Study(
    name="swav_epochs",
    paper="SwAV, arXiv:2006.09882; numbers of the released code's README",
    claim=(
        "Accuracy grows with the number of epochs; small crops help; "
        "a queue makes batches of 256 enough."
    ),
    judged_by="The order of linear top-1 over epochs, and at 400 epochs over the three settings.",
    arms=(
        *(
            Arm(
                name=f"{epochs}ep",
                recipe="swav.imagenet_r50_800ep",
                settings={"epochs": epochs},
                published=top1,
                source=SOURCE,
            )
            for epochs, top1 in {100: 72.1, 200: 73.9, 400: 74.6, 800: 75.3}.items()
        ),
        *(
            Arm(
                name=f"batch256_{epochs}ep",
                recipe="swav.imagenet_r50_batch256_400ep",
                settings={"epochs": epochs},
                published=top1,
                source=SOURCE,
            )
            for epochs, top1 in {200: 72.7, 400: 74.3}.items()
        ),
        Arm(
            name="two_views_400ep",
            recipe="swav.imagenet_r50_two_views_400ep",
            published=70.1,
            source=SOURCE,
        ),
    ),
)
