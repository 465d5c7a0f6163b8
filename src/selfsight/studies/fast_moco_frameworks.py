"""Fast-MoCo: combinatorial patches on other methods."""

from typing import Any

from selfsight.nn.combinatorial_patches import Patches
from selfsight.studies.methods import SIMSIAM_SHORT
from selfsight.studies.study_types import Arm, Claim, Study, cifar10_arm

TABLE_3 = "Fast-MoCo, arXiv:2207.08220, appendix, table 3"

# On CIFAR-10 the patches are the only difference. With them BYOL's loss is the mean of both
# directions and not their sum: twice the learning rate and half the weight decay undo that.
BYOL_PATCHES = {"optim.lr": 0.24, "optim.weight_decay": 2.5e-4}
# Title, recipe, settings, and those with patches.
CIFAR10: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "nnclr": ("NNCLR", "nnclr.cifar10_r18_200ep", {}, {}),
    "byol": ("BYOL", "byol.cifar10_r18_100ep", {}, BYOL_PATCHES),
    "simsiam": ("SimSiam", "simsiam.cifar10_r18_800ep", SIMSIAM_SHORT, {}),
}


STUDY = Study(
    name="fast_moco_frameworks",
    paper=TABLE_3,
    claim="Combinatorial patches improve NNCLR, BYOL and SimSiam at equal epochs.",
    judged_by="Linear top-1 of each method with patches against the same method without.",
    arms=(
        Arm(
            name="nnclr",
            recipe="nnclr.imagenet_r50_100ep",
            published=69.4,
            source="NNCLR, arXiv:2104.14548",
        ),
        Arm(
            name="nnclr_patches",
            recipe="nnclr.imagenet_r50_patches_100ep",
            published=72.5,
            source=TABLE_3,
        ),
        Arm(
            name="byol",
            recipe="byol.imagenet_r50_100ep",
            published=66.5,
            source="SimSiam's reproduction, arXiv:2011.10566, table 4",
        ),
        Arm(
            name="byol_patches",
            recipe="byol.imagenet_r50_patches_100ep",
            published=73.6,
            source=TABLE_3,
        ),
        Arm(
            name="simsiam",
            recipe="simsiam.imagenet_r50_100ep",
            published=68.1,
            source="facebookresearch/simsiam, README",
        ),
        Arm(
            name="simsiam_patches",
            recipe="simsiam.imagenet_r50_patches_100ep",
            published=71.7,
            source=TABLE_3,
        ),
        *(
            cifar10_arm(f"{name}{suffix}", recipe, settings | changes, like=f"{name}{suffix}")
            for name, (_, recipe, settings, with_patches) in CIFAR10.items()
            for suffix, changes in (
                ("", {}),
                ("_patches", {"method.patches": Patches(), **with_patches}),
            )
        ),
        # FastSiam is SimSiam with four views: once with SimSiam's batch, once as published.
        cifar10_arm(
            "fastsiam", "simsiam.cifar10_r18_800ep", {"method.num_views": 4} | SIMSIAM_SHORT
        ),
        cifar10_arm("fastsiam_batch128", "simsiam.cifar10_fastsiam_r18_200ep", {}),
    ),
    claims=(
        *(
            Claim(
                text=f"Combinatorial patches improve {title}.",
                better=f"cifar10_{name}_patches",
                than=f"cifar10_{name}",
            )
            for name, (title, *_) in CIFAR10.items()
        ),
        Claim(
            text="FastSiam's four views improve SimSiam.",
            better="cifar10_fastsiam",
            than="cifar10_simsiam",
        ),
    ),
)
