"""Fast-MoCo: how patches are encoded, and how many are combined."""

from selfsight.studies.study_types import Arm, Study

SOURCE = "none in what we could read (arXiv:2207.08220, section 5.2)"
RECIPE = "fast_moco.imagenet_r50_20ep"

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
            for how in ("sample", "encode_divide", "montage")
        ),
    ),
)
