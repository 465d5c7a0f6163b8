"""MSBReg: views and the weights of both losses, on ImageNet-100."""

from typing import Any

from selfsight.studies.study_types import Arm, Claim, Study, cifar10_arm

# Linear top-1 by the number of views K, lambda_s (lines) and lambda_b (columns).
LAMBDAS_S = (0.0, 0.002, 0.004, 0.01)
LAMBDAS_B = (0.0, 0.25, 0.5, 1.0, 2.0)
TABLE_5 = {
    2: (
        (71.9, 72.3, 72.8, 72.3, 71.9),
        (72.2, 72.4, 72.4, 72.1, 71.9),
        (72.8, 72.8, 72.4, 72.1, 71.2),
        (71.1, 71.0, 71.0, 70.7, 70.3),
    ),
    4: (
        (78.2, 79.1, 79.7, 79.2, 79.0),
        (78.9, 78.8, 79.1, 79.2, 79.2),
        (79.7, 80.2, 80.4, 80.1, 79.9),
        (79.3, 79.4, 79.2, 79.2, 79.0),
    ),
    8: (
        (79.5, 80.1, 80.3, 80.3, 80.2),
        (79.8, 80.2, 80.9, 81.1, 80.8),
        (80.0, 80.9, 81.6, 81.5, 81.3),
        (79.9, 81.2, 81.4, 81.1, 79.8),
    ),
}


def _cifar10(k: int, s: float, b: float, *, form: str = "b") -> Arm:
    """50 epochs; as in the paper the learning rate is proportional to the number of views."""
    settings: dict[str, Any] = {
        "method.num_views": k,
        "method.singular_weight": s,
        "method.brownian_weight": b,
        "method.singular": form,
        "optim.lr": 0.03 * k,
        "optim.weight_decay": 5e-4,
    }
    name = f"k{k}_s{1000 * s:03.0f}_b{100 * b:03.0f}"
    is_default = form == "b"
    return cifar10_arm(
        name if is_default else f"{name}_form_{form}",
        "msbreg.cifar10_r18_100ep",
        settings,
        like=name if is_default else "",
        line=f"lambda_s {s:g}, lambda_b {b:g}" if is_default else "",
        x=k if is_default else None,
    )


def _larger_lr(k: int, s: float) -> Arm:
    """Four times the learning rate and half the weight decay, with which the steps are BYOL's."""
    settings: dict[str, Any] = {
        "method.num_views": k,
        "method.singular_weight": s,
        "method.brownian_weight": 0.0,
        "optim.lr": 0.12 * k,
        "optim.weight_decay": 2.5e-4,
    }
    return cifar10_arm(
        f"k{k}_s{100_000 * s:03.0f}_larger_lr",
        "msbreg.cifar10_r18_100ep",
        settings,
        line=f"lambda_s {s:g}, larger learning rate",
        x=k,
    )


# The name of an arm holds lambda_s in thousandths and lambda_b in hundredths; with `larger_lr`,
# lambda_s in hundred-thousandths.
STUDY = Study(
    name="msbreg_lambdas",
    paper="MSBReg, supplement of arXiv:2207.03552, table 5",
    claim=(
        "Eight views beat four, and four beat two; the singular-value loss (lambda_s) and the "
        "Brownian loss (lambda_b) each help at small weights."
    ),
    judged_by=(
        "Linear top-1 of the best cell over K, and within each K of the best cell against "
        "lambda_s = 0 and against lambda_b = 0."
    ),
    varied="views K",
    arms=(
        *(
            Arm(
                name=f"k{k}_s{1000 * s:03.0f}_b{100 * b:03.0f}",
                recipe="msbreg.imagenet100_r18_k4_320ep",
                settings={
                    "method.num_views": k,
                    "method.singular_weight": s,
                    "method.brownian_weight": b,
                    "optim.lr": 0.4 * k,
                    "epochs": 300,
                },
                published=top1,
                source="MSBReg, supplement, table 5",
                scale="imagenet100",
                line=f"lambda_s {s:g}, lambda_b {b:g}",
                x=float(k),
            )
            for k, table in TABLE_5.items()
            for s, line in zip(LAMBDAS_S, table, strict=True)
            for b, top1 in zip(LAMBDAS_B, line, strict=True)
        ),
        *(_cifar10(k, 0.004, 0.5) for k in (2, 4, 8)),
        _cifar10(4, 0.0, 0.0),
        _cifar10(4, 0.0, 0.5),
        _cifar10(4, 0.004, 0.0),
        *(_cifar10(4, 0.004, 0.5, form=form) for form in ("a", "c")),
        *(_larger_lr(k, s) for k in (2, 4) for s in (0.0, 2.5e-4)),
    ),
    claims=(
        Claim(
            text="Eight views beat four.",
            better="cifar10_k8_s004_b050",
            than="cifar10_k4_s004_b050",
        ),
        Claim(
            text="Four views beat two.",
            better="cifar10_k4_s004_b050",
            than="cifar10_k2_s004_b050",
        ),
        Claim(
            text="The Brownian loss L_b helps, at four views.",
            better="cifar10_k4_s000_b050",
            than="cifar10_k4_s000_b000",
        ),
        Claim(
            text="The singular-value loss L_s helps, at four views.",
            better="cifar10_k4_s004_b000",
            than="cifar10_k4_s000_b000",
        ),
        Claim(
            text="Both losses together help, at four views.",
            better="cifar10_k4_s004_b050",
            than="cifar10_k4_s000_b000",
        ),
        *(
            Claim(
                text=f"L_s at 0.00025 helps, at {k} views and a larger learning rate.",
                better=f"cifar10_k{k}_s025_larger_lr",
                than=f"cifar10_k{k}_s000_larger_lr",
            )
            for k in (2, 4)
        ),
        Claim(
            text="With L_s at 0.00025 and a larger learning rate, four views beat two.",
            better="cifar10_k4_s025_larger_lr",
            than="cifar10_k2_s025_larger_lr",
        ),
        # The paper does not decide between the forms. Their scales differ, lambda_s does not.
        *(
            Claim(
                text=f"Form b of L_s is better than form {form}, at four views and one lambda_s.",
                better="cifar10_k4_s004_b050",
                than=f"cifar10_k4_s004_b050_form_{form}",
            )
            for form in ("a", "c")
        ),
    ),
)
