"""All methods on CIFAR-10 with the same network, epochs and batch, and six on Imagenette."""

from typing import Any

from selfsight.studies.study_types import NONE_PUBLISHED, Arm, Claim, Study

LIGHTLY = "lightly, CIFAR-10 benchmark, 200 epochs, the best over epochs, batch {}"
DEMO = "facebookresearch/moco, CIFAR-10 demo, on the output of a linear head"
# The recipe has the learning rate of 800 epochs; this one was tuned on held-out images, for fewer.
SIMSIAM_SHORT = {"optim.lr": 0.12, "optim.schedule.warmup_epochs": 5.0}

# Arm: recipe, changed settings, kNN (k = 200) in percent and its source. A batch holds 512 images;
# of MSBReg and JCL, whose images have more than two views, about as many views.
ARMS: dict[str, tuple[str, dict[str, Any], float | None, str]] = {
    "barlow_twins": ("barlow_twins.cifar10_r18_200ep", {}, 84.2, LIGHTLY.format(128)),
    "byol": ("byol.cifar10_r18_100ep", {}, 86.8, LIGHTLY.format(512)),
    "dino": ("dino.cifar10_r18_200ep", {}, 81.3, LIGHTLY.format(512)),
    "fast_moco": ("fast_moco.cifar10_r18_200ep", {}, None, NONE_PUBLISHED),
    "fastsiam": (
        "simsiam.cifar10_fastsiam_r18_200ep",
        {"batch_size": 128},  # as published: 78.8 at batch 512
        90.6,
        LIGHTLY.format(128),
    ),
    "instdisc": (
        "instdisc.cifar10_r18_200ep",
        {"optim.lr": 0.12},
        80.8,
        "InstDisc, table 1, of its output",
    ),
    "jcl": ("jcl.cifar10_r18_200ep", {"batch_size": 192}, None, NONE_PUBLISHED),
    # SIGReg grows with the batch.
    "lejepa": ("lejepa.cifar10_r18_300ep", {"batch_size": 256}, None, NONE_PUBLISHED),
    "moco": ("moco.cifar10_r18_200ep", {}, 82.6, DEMO),
    "moco_v2plus": ("moco.cifar10_v2plus_r18_200ep", {}, 85.3, DEMO),
    "mocov3": ("mocov3.cifar10_r18_100ep", {}, None, NONE_PUBLISHED),
    "msbreg": ("msbreg.cifar10_r18_100ep", {"batch_size": 256}, None, NONE_PUBLISHED),
    "nnclr": ("nnclr.cifar10_r18_200ep", {}, 83.4, LIGHTLY.format(128)),
    "simclr": ("simclr.cifar10_r18_200ep", {}, 84.8, LIGHTLY.format(512)),
    "simo": ("simo.cifar10_r18_200ep", {}, None, NONE_PUBLISHED),
    "simsiam": ("simsiam.cifar10_r18_800ep", SIMSIAM_SHORT, 81.9, LIGHTLY.format(128)),
    "swav": ("swav.cifar10_r18_200ep", {}, 84.2, LIGHTLY.format(512)),
    "vicreg": ("vicreg.cifar10_r18_1000ep", {}, None, NONE_PUBLISHED),
    "supervised": ("supervised.cifar10_r18_100ep", {}, None, NONE_PUBLISHED),
}

IMAGENETTE = {
    "fast_moco": "fast_moco.imagenette_r18_200ep",
    "fastsiam": "simsiam.imagenette_fastsiam_r18_200ep",
    "jcl": "jcl.imagenette_r18_200ep",
    "moco": "moco.imagenette_r18_200ep",
    "moco_v2plus": "moco.imagenette_v2plus_r18_200ep",
    "mocov3": "mocov3.imagenette_r18_200ep",
}

STUDY = Study(
    name="methods",
    paper="no paper: all methods in one setting; the references are other libraries'",
    claim="Each method reaches what other libraries publish for it at 200 epochs.",
    judged_by="kNN (k = 200, temperature 0.1) on the test set against the published number.",
    arms=(
        *(
            Arm(
                name=name,
                recipe=recipe,
                settings={"epochs": 200, "batch_size": 512} | settings,
                published=published,
                metric="kNN (k = 200)",
                source=source,
                scale="cifar10",
            )
            for name, (recipe, settings, published, source) in ARMS.items()
        ),
        *(
            Arm(
                name=f"imagenette_{name}",
                recipe=recipe,
                metric="kNN",
                source="none published at 200 epochs; MoCo reaches 87.4 % after 800 (lightly)",
                scale="imagenette",
            )
            for name, recipe in IMAGENETTE.items()
        ),
    ),
    claims=tuple(
        Claim(
            text=f"{name} reaches the published {published} % ({source.split(',')[0]}).",
            better=name,
            than=published,
            measure="knn_200",
        )
        for name, (_, _, published, source) in ARMS.items()
        if published is not None
    ),
)
