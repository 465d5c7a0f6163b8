"""Fast-MoCo: how patches are encoded, and how many are combined."""

from typing import Any

from selfsight.studies.study_types import Arm, Claim, Study, cifar10_arm

SOURCE = "none in what we could read (arXiv:2207.08220, section 5.2)"
RECIPE = "fast_moco.imagenet_r50_20ep"
HOW = {
    "sample": "patches from random positions",
    "encode_divide": "dividing the feature maps of the whole view",
    "montage": "montages of several images",
}


def _cifar10(name: str, settings: dict[str, Any], *, like: str = "", n: int | None = None) -> Arm:
    """50 epochs; patches have 16 pixels."""
    line = "n of 4 patches" if n else ""
    return cifar10_arm(name, "fast_moco.cifar10_r18_200ep", settings, like=like, line=line, x=n)


STUDY = Study(
    name="fast_moco_patches",
    paper="Fast-MoCo, arXiv:2207.08220, section 5.2",
    claim="Dividing, encoding and then combining two of four patches is best.",
    judged_by=(
        "Linear top-1 of combine2 (the default: divide, encode, combine two) "
        "against each of the others."
    ),
    arms=(
        *(
            Arm(
                name=f"combine{n}",
                recipe=RECIPE,
                settings={"method.patches.combine": n},
                source=SOURCE,
            )
            for n in (1, 2, 3, 4)
        ),
        *(
            Arm(name=how, recipe=RECIPE, settings={"method.patches.how": how}, source=SOURCE)
            for how in HOW
        ),
        # The default first, then whole views and those nearest to it.
        _cifar10("combine2", {}, like="combine2", n=2),
        _cifar10("whole_views", {"method.patches.how": "off"}),
        *(
            _cifar10(f"combine{n}", {"method.patches.combine": n}, like=f"combine{n}", n=n)
            for n in (1, 3, 4)
        ),
        *(_cifar10(how, {"method.patches.how": how}, like=how) for how in HOW),
    ),
    varied="patches n in a combination, of 4",
    claims=(
        Claim(
            text="Combining two of four patches is better than whole views.",
            better="cifar10_combine2",
            than="cifar10_whole_views",
        ),
        *(
            Claim(
                text=f"Combining two of four patches is better than combining {n}.",
                better="cifar10_combine2",
                than=f"cifar10_combine{n}",
            )
            for n in (1, 3, 4)
        ),
        *(
            Claim(
                text=f"Dividing the view is better than {title}.",
                better="cifar10_combine2",
                than=f"cifar10_{how}",
            )
            for how, title in HOW.items()
        ),
    ),
)
