"""JCL: the number of keys, lambda and the temperature, on ImageNet-100."""

from typing import Any

from selfsight.studies.study_types import Arm, Study

PAPER = "JCL, arXiv:2009.14776"


def _arm(name: str, figure: str, settings: dict[str, Any]) -> Arm:
    return Arm(
        name=name,
        recipe="jcl.imagenet100_r18_100ep",
        settings=settings,
        source=f"plotted, not printed ({PAPER}, {figure})",
        scale="imagenet100",
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
    ),
)
