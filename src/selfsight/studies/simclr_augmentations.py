"""SimCLR: each augmentation alone and each pair, on one branch only."""

from dataclasses import replace
from typing import Any

from selfsight.recipes import simclr
from selfsight.studies.study_types import Arm, Claim, Scale, Study
from selfsight.views import View

FIGURE_5 = "SimCLR, arXiv:2002.05709, figure 5"
NAMES = ("crop", "cutout", "color", "sobel", "noise", "blur", "rotate")

# Linear top-1 with a first augmentation (row) and a second one (column); alone on the diagonal.
TABLE: dict[str, tuple[float, ...]] = {
    "crop": (33.1, 33.9, 56.3, 46.0, 39.9, 35.0, 30.2),
    "cutout": (32.2, 25.6, 33.9, 40.0, 26.5, 25.2, 22.4),
    "color": (55.8, 35.5, 18.8, 21.0, 11.4, 16.5, 20.8),
    "sobel": (46.2, 40.6, 20.9, 4.0, 9.3, 6.2, 4.2),
    "noise": (38.8, 25.8, 7.5, 7.6, 9.8, 9.8, 9.6),
    "blur": (35.1, 25.2, 16.6, 5.8, 9.7, 2.6, 6.7),
    "rotate": (30.0, 22.5, 20.7, 4.3, 9.7, 6.5, 2.6),
}

# On CIFAR-10 these decide first: the pair, each alone, the next best pair, the other order.
FIRST = (
    *(("crop", "color"), ("crop", "crop"), ("color", "color")),
    *(("crop", "sobel"), ("color", "crop")),
)
PAIRS = dict.fromkeys([*FIRST, *((first, second) for first in NAMES for second in NAMES)])

# Operations of each augmentation in their order, with SimCLR's probabilities for color.
OPERATIONS: dict[str, dict[str, float]] = {
    "crop": {"second_crop": 1.0},
    "cutout": {"cutout": 1.0},
    "color": {"jitter": 0.8, "gray": 0.2},
    "sobel": {"sobel": 1.0},
    "noise": {"noise": 1.0},
    "blur": {"blur": 1.0},
    "rotate": {"rotate": 1.0},
}


def one_branch(view: View, *names: str) -> tuple[View, View]:
    """Return a plain view, and the same crop of it with these augmentations one after another."""
    plain = replace(view, flip=0.0, jitter_p=0.0, gray=0.0, blur=0.0)
    steps = {name: p for augmentation in names for name, p in OPERATIONS[augmentation].items()}
    settings: dict[str, Any] = {"jitter_p" if k == "jitter" else k: p for k, p in steps.items()}
    return plain, replace(plain, crop="shared", order=tuple(steps), **settings)


def _arm(first: str, second: str, scale: Scale, published: float | None) -> Arm:
    on_imagenet = scale == "imagenet"
    recipe = simclr.imagenet_r50_100ep if on_imagenet else simclr.cifar10_r18_200ep
    name = first if first == second else f"{first}_{second}"
    views = one_branch(recipe().views[0], *dict.fromkeys((first, second)))
    return Arm(
        name=name if on_imagenet else f"{scale}_{name}",
        recipe=f"simclr.{recipe.__name__}",
        settings={"views": views} | ({} if on_imagenet else {"epochs": 50}),
        published=published,
        source=FIGURE_5 if on_imagenet else f"none published on CIFAR-10; ImageNet in {FIGURE_5}",
        scale=scale,
        like="" if on_imagenet else name,
        cell=(first, second),
    )


# Both branches have the same random crop, as the numbers show: two crops of their own would give
# every cell the accuracy of cropping. No branch is flipped, which the paper does not state.
STUDY = Study(
    name="simclr_augmentations",
    paper=FIGURE_5,
    claim="No single augmentation suffices; of all pairs, crop and color distortion are best.",
    judged_by=(
        "Linear top-1 of the pair crop and color against every other cell, and of each row's mean."
    ),
    varied="row: first augmentation, column: second",
    arms=(
        *(
            _arm(first, second, "imagenet", top1)
            for first, row in TABLE.items()
            for second, top1 in zip(NAMES, row, strict=True)
        ),
        *(_arm(first, second, "cifar10", None) for first, second in PAIRS),
    ),
    claims=tuple(
        Claim(
            text=f"Crop and color distortion are better than {title}.",
            better="cifar10_crop_color",
            than=f"cifar10_{name}",
        )
        for name, title in (
            ("crop", "crop alone"),
            ("color", "color distortion alone"),
            ("crop_sobel", "crop and Sobel filtering, the next best pair of the paper"),
        )
    ),
)
