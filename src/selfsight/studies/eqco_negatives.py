"""EqCo: accuracy against the number of negatives, with and without the margin."""

from selfsight.optim import Optim, Schedule
from selfsight.studies.study_types import Arm, Claim, Study, cifar10_arm

PAPER = "EqCo, arXiv:2010.01929"
PLOTTED = f"plotted, not printed ({PAPER}, figure 2)"
ALPHA = 65536.0

# The number of negatives K; the ticks of figure 2 are not in the paper's text.
SIZES = (4, 16, 64, 256, 1024, 4096, 16384)

# Linear top-1 by K. The other points of figure 2 are plotted, not printed.
V1_PLAIN = {256: 54.7}  # section 1
V1_EQCO = {256: 60.4}  # section 1: 0.2 below the 60.6 of K = 65536
V2_PLAIN = {256: 67.0, 1024: 67.1, 4096: 67.6, 16384: 67.3, 262144: 67.4}  # table 6

V2_50_EPOCHS = {"optim.schedule.warmup_epochs": 5.0}
# The recipe of MoCo v2 before it was tuned.
HIGH_DECAY = {
    "optim": Optim(lr=0.12, weight_decay=5e-4, schedule=Schedule()),
    **{"method.temperature": 0.1, "method.bn": "shuffle", "method.bn_group": 64},
}


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


def _cifar10(method: str, k: int, *, eqco: bool, high_decay: bool = False) -> Arm:
    """50 epochs of MoCo v2 with a queue of 4096, or of SiMo with 511 other keys in its batch."""
    name, negatives = {"v2": ("moco", "queue_size"), "simo": ("simo", "num_negatives")}[method]
    alpha = {"v2": 4096.0, "simo": 511.0}[method] if eqco else None
    settings = {f"method.{negatives}": k, "method.alpha": alpha}
    paper = f"v2_{'eqco_' if eqco else ''}k{k}"
    line = f"{'MoCo v2' if method == 'v2' else 'SiMo'}{' with EqCo' if eqco else ''}"
    return cifar10_arm(
        f"{method}_{'eqco_' if eqco else ''}k{k}{'_high_decay' * high_decay}",
        f"{name}.cifar10_r18_200ep",
        settings | (HIGH_DECAY if high_decay else V2_50_EPOCHS if method == "v2" else {}),
        like=paper if method == "v2" and not high_decay else "",
        line=f"{line}, weight decay 5e-4" if high_decay else line,
        x=k,
    )


def _batch64(k: int, *, eqco: bool) -> Arm:
    """MoCo v2 in eight times as many steps, each with other negatives that its queries share."""
    name = f"{'eqco_' if eqco else ''}k{k}"
    settings = {"method.queue_size": k, "method.alpha": 4096.0 if eqco else None, "batch_size": 64}
    return cifar10_arm(f"v2_{name}_batch64", "moco.cifar10_r18_200ep", settings | V2_50_EPOCHS)


STUDY = Study(
    name="eqco_negatives",
    paper=f"{PAPER}, figure 2, table 6 and section 1",
    claim=(
        "With EqCo's margin, few negatives reach the accuracy of many; without it, accuracy "
        "falls with the number of negatives."
    ),
    judged_by=(
        "For each method, linear top-1 of few negatives with the margin against the largest K, "
        "and against as few without the margin."
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
        # Those that decide first.
        _cifar10("v2", 4096, eqco=False),
        _cifar10("v2", 16, eqco=False),
        _cifar10("v2", 16, eqco=True),
        _cifar10("simo", 511, eqco=False),
        _cifar10("simo", 16, eqco=False),
        _cifar10("simo", 16, eqco=True),
        *(_cifar10("v2", k, eqco=eqco) for k in (4, 64, 256, 1024) for eqco in (False, True)),
        *(_cifar10("simo", k, eqco=eqco) for k in (4, 64) for eqco in (False, True)),
        _cifar10("v2", 16384, eqco=False),
        _cifar10("v2", 4096, eqco=False, high_decay=True),
        _cifar10("v2", 16, eqco=False, high_decay=True),
        _cifar10("v2", 16, eqco=True, high_decay=True),
        _batch64(4096, eqco=False),
        _batch64(16, eqco=False),
        _batch64(16, eqco=True),
    ),
    varied="negatives K",
    claims=tuple(
        claim
        for method, title, k, many, end in (
            ("v2", "MoCo v2", 16, 4096, ""),
            ("v2", "MoCo v2", 256, 4096, ""),
            ("v2", "MoCo v2 in batches of 64", 16, 4096, "_batch64"),
            ("simo", "SiMo", 4, 511, ""),
            ("simo", "SiMo", 16, 511, ""),
            ("simo", "SiMo", 64, 511, ""),
        )
        for claim in (
            Claim(
                text=f"{title}: with EqCo, K = {k} keeps the accuracy of K = {many} to 1 point.",
                better=f"cifar10_{method}_eqco_k{k}{end}",
                than=f"cifar10_{method}_k{many}{end}",
                margin=-1.0,
            ),
            Claim(
                text=f"{title}: without EqCo, K = {k} is worse than K = {many}.",
                better=f"cifar10_{method}_k{many}{end}",
                than=f"cifar10_{method}_k{k}{end}",
            ),
            Claim(
                text=f"{title}: at K = {k}, EqCo is better than the plain loss.",
                better=f"cifar10_{method}_eqco_k{k}{end}",
                than=f"cifar10_{method}_k{k}{end}",
            ),
        )
    ),
)
