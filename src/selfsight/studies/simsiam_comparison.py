"""SimSiam's comparison of five methods by the number of epochs."""

from typing import Any

from selfsight.studies.study_types import Arm, Study

TABLE_4 = "SimSiam, arXiv:2011.10566, table 4"
EPOCHS = (100, 200, 400, 800)

# Linear top-1 by epochs, all run by the authors of SimSiam. Of the other methods' settings the
# table has only the batch size: these are the recipes nearest in length. SwAV has no small crops.
TABLE: dict[str, tuple[float, ...]] = {
    "simclr": (66.5, 68.3, 69.8, 70.4),
    "moco_v2plus": (67.4, 69.9, 71.0, 72.2),
    "byol": (66.5, 70.6, 73.2, 74.3),
    "swav": (66.5, 69.1, 70.7, 71.8),
    "simsiam": (68.1, 70.0, 70.8, 71.3),
}
RECIPES: dict[str, tuple[str, str, str, str]] = {
    "simclr": ("simclr.imagenet_r50_100ep",) * 4,
    "moco_v2plus": ("moco.imagenet_v2plus_200ep",) * 4,
    "byol": (
        "byol.imagenet_r50_100ep",
        "byol.imagenet_r50_300ep",
        "byol.imagenet_r50_300ep",
        "byol.imagenet_r50_1000ep",
    ),
    "swav": ("swav.imagenet_r50_two_views_400ep",) * 4,
    "simsiam": ("simsiam.imagenet_r50_100ep",) * 4,
}


def _arm(method: str, recipe: str, epochs: int, top1: float) -> Arm:
    settings: dict[str, Any] = {"epochs": epochs}
    return Arm(
        name=f"{method}_{epochs}ep",
        recipe=recipe,
        settings=settings | ({"batch_size": 256} if method == "simsiam" else {}),
        published=top1,
        source=TABLE_4,
        line=method,
        x=float(epochs),
    )


STUDY = Study(
    name="simsiam_comparison",
    paper=TABLE_4,
    claim="SimSiam is best at 100 epochs, with a batch of 256; BYOL gains most from more epochs.",
    judged_by="The order of linear top-1 at 100 and at 800 epochs.",
    arms=tuple(
        _arm(method, recipe, epochs, top1)
        for method, numbers in TABLE.items()
        for recipe, epochs, top1 in zip(RECIPES[method], EPOCHS, numbers, strict=True)
    ),
    varied="epochs",
)
