"""SiMo: the momentum teacher and batch norm over the global batch."""

from typing import Any

from selfsight.studies.study_types import Arm, Claim, Study, cifar10_arm

PAPER = "EqCo, arXiv:2010.01929"
RECIPE = "simo.imagenet_r50_100ep"


def _cifar10(name: str, settings: dict[str, Any], *, like: str = "") -> Arm:
    """50 epochs with K = alpha = 256, as in the paper; the momentum is 0.99."""
    momentum = settings.get("method.momentum", 0.99)
    on_line = "method.bn" not in settings
    return cifar10_arm(
        name,
        "simo.cifar10_r18_200ep",
        {"method.num_negatives": 256, "method.alpha": 256.0} | settings,
        like=like,
        line="batch norm over the batch" if on_line else "",
        x=round(1 / (1 - momentum)) if on_line else None,
    )


STUDY = Study(
    name="simo_momentum_and_bn",
    paper=f"{PAPER}, tables 3 and 4",
    claim="SiMo needs the momentum teacher, and batch norm over the global batch.",
    judged_by="Linear top-1 of the baseline against each of the two others.",
    arms=(
        Arm(name="baseline", recipe=RECIPE, published=64.4, source=f"{PAPER}, tables 3 and 4"),
        # The teacher is the student of the previous step.
        Arm(
            name="no_momentum",
            recipe=RECIPE,
            settings={"method.momentum": 0.0},
            published=62.1,
            source=f"{PAPER}, table 3",
        ),
        Arm(
            name="shuffled_bn",
            recipe=RECIPE,
            settings={"method.bn": "shuffle"},
            published=58.8,
            source=f"{PAPER}, table 4",
        ),
        _cifar10("baseline", {}, like="baseline"),
        _cifar10("no_momentum", {"method.momentum": 0.0}, like="no_momentum"),
        # The groups that eight GPUs would have.
        _cifar10(
            "shuffled_bn", {"method.bn": "shuffle", "method.bn_group": 64}, like="shuffled_bn"
        ),
        _cifar10("momentum0900", {"method.momentum": 0.9}),
        _cifar10("momentum0999", {"method.momentum": 0.999}),
    ),
    varied="steps that the teacher averages over: 1 / (1 - momentum)",
    claims=(
        Claim(
            text="SiMo is better with the momentum teacher than without.",
            better="cifar10_baseline",
            than="cifar10_no_momentum",
        ),
        Claim(
            text="Batch norm over the batch is better than over shuffled groups of 64.",
            better="cifar10_baseline",
            than="cifar10_shuffled_bn",
        ),
    ),
)
