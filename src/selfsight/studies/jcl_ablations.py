"""JCL: the number of keys, lambda and the temperature, on ImageNet-100."""

from typing import Any

from selfsight.studies.study_types import Arm, Claim, Study, cifar10_arm

PAPER = "JCL, arXiv:2009.14776"


def _arm(name: str, figure: str, settings: dict[str, Any]) -> Arm:
    return Arm(
        name=name,
        recipe="jcl.imagenet100_r18_100ep",
        settings=settings,
        source=f"plotted, not printed ({PAPER}, {figure})",
        scale="imagenet100",
    )


def _cifar10(
    name: str, settings: dict[str, Any], *, like: str = "", keys: int | None = None
) -> Arm:
    """50 epochs from 4 keys, lambda 2, temperature 0.2: the baseline of jcl_multi_key."""
    return cifar10_arm(
        name,
        "jcl.cifar10_r18_200ep",
        {"optim.schedule.warmup_epochs": 5.0} | settings,
        like=like,
        line="lambda 2, temperature 0.2" if keys else "",
        x=keys,
    )


# The supplement's table 1 fixes two of three settings at (5 keys, lambda 4, temperature 0.2) and
# varies the third; figure 2 only draws the results. The values are ours.
STUDY = Study(
    name="jcl_ablations",
    paper=f"{PAPER}, figure 2; supplement, table 1",
    claim="Accuracy depends on the number of keys, on lambda and on the temperature.",
    judged_by="The curve of linear top-1 over each setting, the two others fixed.",
    arms=(
        _arm("baseline", "figure 2", {}),
        *(_arm(f"m{m}", "figure 2(a)", {"method.num_keys": m}) for m in (2, 3, 7, 9)),
        *(
            _arm(f"lambda{strength}", "figure 2(b)", {"method.strength": float(strength)})
            for strength in (0, 1, 2, 8)
        ),
        *(
            _arm(f"t{100 * t:03.0f}", "figure 2(c)", {"method.temperature": t})
            for t in (0.05, 0.1, 0.5, 1.0)
        ),
        _cifar10("baseline", {}, like="baseline", keys=4),
        _cifar10("m2", {"method.num_keys": 2}, like="m2", keys=2),
        _cifar10("lambda0", {"method.strength": 0.0}, like="lambda0"),
        _cifar10("t010", {"method.temperature": 0.1}, like="t010"),
        _cifar10("t050", {"method.temperature": 0.5}, like="t050"),
        _cifar10("m9", {"method.num_keys": 9}, like="m9", keys=9),
        _cifar10("lambda8", {"method.strength": 8.0}, like="lambda8"),
        _cifar10("lambda1", {"method.strength": 1.0}, like="lambda1"),
        _cifar10("lambda4", {"method.strength": 4.0}),
        _cifar10("m3", {"method.num_keys": 3}, like="m3", keys=3),
        _cifar10("m7", {"method.num_keys": 7}, like="m7", keys=7),
        _cifar10("t005", {"method.temperature": 0.05}, like="t005"),
        _cifar10("t100", {"method.temperature": 1.0}, like="t100"),
    ),
    varied="number of keys",
    claims=(
        Claim(text="Four keys beat two.", better="cifar10_baseline", than="cifar10_m2"),
        Claim(text="Nine keys beat two.", better="cifar10_m9", than="cifar10_m2"),
        Claim(
            text="The covariance helps: lambda 2 is better than 0.",
            better="cifar10_baseline",
            than="cifar10_lambda0",
        ),
        Claim(
            text="The supplement's lambda, 4, is better than 2.",
            better="cifar10_lambda4",
            than="cifar10_baseline",
        ),
        Claim(
            text="Lambda 4 is better than 8.",
            better="cifar10_lambda4",
            than="cifar10_lambda8",
        ),
        Claim(
            text="Temperature 0.2 is better than 0.1.",
            better="cifar10_baseline",
            than="cifar10_t010",
        ),
        Claim(
            text="Temperature 0.2 is better than 0.5.",
            better="cifar10_baseline",
            than="cifar10_t050",
        ),
    ),
)
