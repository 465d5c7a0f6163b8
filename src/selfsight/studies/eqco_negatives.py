"""EqCo: accuracy against the number of negatives, with and without the margin."""

from selfsight.optim import Optim, Schedule
from selfsight.studies.base import Arm, Study

PAPER = "EqCo, arXiv:2010.01929"
PLOTTED = f"plotted, not printed ({PAPER}, figure 2)"
ALPHA = 65536.0

# The number of negatives K; the ticks of figure 2 are not in the paper's text.
SIZES = (4, 16, 64, 256, 1024, 4096, 16384)

# Linear top-1 by K. The other points of figure 2 are plotted, not printed.
V1_PLAIN = {256: 54.7}  # section 1
V1_EQCO = {256: 60.4}  # section 1: 0.2 below the 60.6 of K = 65536
V2_PLAIN = {256: 67.0, 1024: 67.1, 4096: 67.6, 16384: 67.3, 262144: 67.4}  # table 6


def _moco(version: str, k: int, printed: dict[int, float], place: str, *, eqco: bool) -> Arm:
    return Arm(
        name=f"{version}_{'eqco_' if eqco else ''}k{k}",
        recipe=f"moco.imagenet_{version}_200ep",
        settings={"method.queue_size": k} | ({"method.alpha": ALPHA} if eqco else {}),
        published=printed.get(k),
        source=f"{PAPER}, {place}" if k in printed else PLOTTED,
    )


def _simclr(k: int, num_negatives: int | None, alpha: float | None) -> Arm:
    """Batch 256, SGD in place of LARS; negatives are keys of the other view.

    The paper does not state SGD's learning rate: it is MoCo v2's here, with its weight decay.
    """
    return Arm(
        name=f"simclr_{'eqco_' if alpha else ''}k{k}",
        recipe="simclr.imagenet_r50_200ep",
        settings={
            "method.negatives": "cross",
            "method.num_negatives": num_negatives,
            "method.alpha": alpha,
            "optim": Optim(schedule=Schedule(warmup_epochs=10)),
            "batch_size": 256,
        },
        source=PLOTTED,
    )


STUDY = Study(
    name="eqco_negatives",
    paper=f"{PAPER}, figure 2, table 6 and section 1",
    claim=(
        "With EqCo's margin, few negatives reach the accuracy of many; without it, accuracy "
        "falls with the number of negatives."
    ),
    judged_by=(
        "For each method, linear top-1 of K = 16 with the margin against the largest K, "
        "and against the same K without the margin."
    ),
    arms=(
        Arm(
            name="v1_k65536",
            recipe="moco.imagenet_v1_200ep",
            published=60.6,
            source="facebookresearch/moco, README",
        ),
        *(_moco("v1", k, V1_PLAIN, "section 1", eqco=False) for k in SIZES),
        *(_moco("v1", k, V1_EQCO, "section 1", eqco=True) for k in SIZES),
        Arm(
            name="v2_k65536",
            recipe="moco.imagenet_v2_200ep",
            published=67.5,
            source="facebookresearch/moco, README",
        ),
        *(_moco("v2", k, V2_PLAIN, "table 6", eqco=False) for k in (*SIZES, 262144)),
        *(_moco("v2", k, {}, "figure 2", eqco=True) for k in SIZES),
        # In a batch of 256 each query has 255 negatives: the paper's K = 256.
        *(
            _simclr(k, num_negatives, alpha)
            for k, num_negatives in {4: 4, 16: 16, 64: 64, 256: None}.items()
            for alpha in (None, 256.0)
        ),
        Arm(
            name="imagenette_k4096",
            recipe="moco.imagenette_r18_200ep",
            metric="kNN",
            source="none published",
            scale="imagenette",
        ),
        Arm(
            name="imagenette_eqco_k16",
            recipe="moco.imagenette_r18_200ep",
            settings={"method.queue_size": 16, "method.alpha": 4096.0},
            metric="kNN",
            source=(
                "none published; EqCo claims the accuracy of the 4096 (arXiv:2010.01929, figure 2)"
            ),
            scale="imagenette",
        ),
    ),
)
