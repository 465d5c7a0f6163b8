"""MSBReg: views and the weights of both losses, on ImageNet-100."""

from selfsight.studies.base import Arm, Study

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

# The name of an arm holds lambda_s in thousandths and lambda_b in hundredths.
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
    arms=tuple(
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
        )
        for k, table in TABLE_5.items()
        for s, line in zip(LAMBDAS_S, table, strict=True)
        for b, top1 in zip(LAMBDAS_B, line, strict=True)
    ),
)
