"""MSBReg: batch norm and layer norm on STL-10, with and without the Brownian loss."""

from typing import Any

from selfsight.studies.study_types import Arm, Claim, Study, cifar10_arm

# Method, norm, batch size, lambda_b, linear top-1. The number of views is not stated there.
TABLE_4 = [
    ("byol", "bn", 256, 0.0, 89.5),
    ("ours", "bn", 256, 5e-2, 91.4),
    ("byol", "ln", 256, 0.0, 10.6),
    ("byol", "ln", 256, 5e-3, 75.3),
    ("byol", "ln", 1024, 0.0, 10.6),
    ("ours", "ln", 256, 5e-4, 80.7),
    ("ours", "ln", 256, 5e-3, 82.3),
    ("ours", "ln", 256, 5e-2, 78.7),
]

# BYOL is two views without the added losses.
BYOL: dict[str, Any] = {
    "method.num_views": 2,
    "method.singular_weight": 0.0,
    "optim.lr": 0.5 * 2,
}


def _cifar10(norm: str, b: float) -> Arm:
    """50 epochs of BYOL: two views without the singular-value loss."""
    name = f"byol_{norm}_256_b{10000 * b:03.0f}"
    return cifar10_arm(
        name,
        "msbreg.cifar10_r18_100ep",
        {
            "method.num_views": 2,
            "method.singular_weight": 0.0,
            "method.brownian_weight": b,
            "method.norm": norm,
            "optim.lr": 0.06,
            "optim.weight_decay": 5e-4,
            "batch_size": 256,
        },
        like=name if b < 5e-2 else "",
    )


# The name of an arm holds lambda_b in ten-thousandths.
STUDY = Study(
    name="msbreg_norm",
    paper="MSBReg, supplement of arXiv:2207.03552, table 4",
    claim="With layer norm BYOL collapses, and the Brownian loss rescues it.",
    judged_by="Linear top-1 with layer norm, at lambda_b = 0 against the others and chance (10 %).",
    arms=(
        *(
            Arm(
                name=f"{method}_{norm}_{batch_size}_b{10000 * b:03.0f}",
                recipe="msbreg.stl10_r18_320ep",
                settings=(BYOL if method == "byol" else {})
                | {"method.norm": norm, "method.brownian_weight": b, "batch_size": batch_size},
                published=top1,
                source="MSBReg, supplement, table 4",
                scale="stl10",
            )
            for method, norm, batch_size, b, top1 in TABLE_4
        ),
        _cifar10("bn", 0.0),
        _cifar10("ln", 0.0),
        _cifar10("ln", 0.005),
        _cifar10("ln", 0.05),
    ),
    claims=(
        Claim(
            text="With layer norm in place of batch norm BYOL is far worse (20 points or more).",
            better="cifar10_byol_bn_256_b000",
            than="cifar10_byol_ln_256_b000",
            margin=20.0,
        ),
        *(
            Claim(
                text=f"With layer norm, the Brownian loss at {b} rescues BYOL (20 points or more).",
                better=f"cifar10_byol_ln_256_b{10000 * b:03.0f}",
                than="cifar10_byol_ln_256_b000",
                margin=20.0,
            )
            for b in (5e-3, 5e-2)
        ),
    ),
)
