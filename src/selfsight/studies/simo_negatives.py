"""SiMo: accuracy against the number of negatives, with and without EqCo."""

from selfsight.studies.study_types import Arm, Claim, Study, cifar10_arm

PAPER = "EqCo, arXiv:2010.01929"
PLOTTED = f"plotted, not printed ({PAPER}, figure 3)"
RECIPE = "simo.imagenet_r50_200ep"

# The number of negatives K; the ticks of figure 3 are not in the paper's text.
SIZES = (4, 16, 64)


def _cifar10(k: int, *, like: str = "", eqco: bool = True, shared: bool = True) -> Arm:
    """50 epochs; the 511 other keys of a batch are all there are, and alpha with EqCo."""
    return cifar10_arm(
        f"k{k}{'' if eqco else '_plain'}{'' if shared else '_own_negatives'}",
        "simo.cifar10_r18_200ep",
        {
            "method.num_negatives": k,
            "method.alpha": 511.0 if eqco and k < 511 else None,  # equal to K it has no effect
            "method.shared_negatives": shared,
        },
        like=like,
        line=("EqCo" if eqco else "no margin") + ("" if shared else ", own negatives"),
        x=k,
    )


STUDY = Study(
    name="simo_negatives",
    paper=f"{PAPER}, figure 3, table 2 and remark 2",
    claim=(
        "With EqCo, 16 negatives reach the accuracy of 256; without it, accuracy falls. "
        "Negatives sampled for each query alone change little."
    ),
    judged_by=(
        "Linear top-1 of K = 16 against K = 256, against K = 16 without EqCo, and against "
        "16 negatives for each query alone."
    ),
    arms=(
        # A batch of 256 has 255 negatives: the paper's K = 256.
        Arm(name="k256", recipe=RECIPE, published=68.0, source=f"{PAPER}, table 2"),
        *(
            Arm(
                name=f"k{k}",
                recipe=RECIPE,
                settings={"method.num_negatives": k},
                published=68.1 if k == 16 else None,
                source=f"{PAPER}, table 2" if k == 16 else PLOTTED,
            )
            for k in SIZES
        ),
        *(
            Arm(
                name=f"k{k}_plain",
                recipe=RECIPE,
                settings={"method.num_negatives": k, "method.alpha": None},
                source=PLOTTED,
            )
            for k in SIZES
        ),
        Arm(
            name="k16_own_negatives",
            recipe=RECIPE,
            settings={"method.num_negatives": 16, "method.shared_negatives": False},
            source=f"about the 68.1 % of shared ones ({PAPER}, remark 2 and table 2)",
        ),
        # In a batch of 256 all queries have the same 255: a choice of 256 needs a larger batch.
        *(
            Arm(
                name=f"k256_batch512{name}",
                recipe=RECIPE,
                settings={"batch_size": 512, "method.shared_negatives": shared},
                source=f"none printed at batch 512; about equal to the other ({PAPER}, remark 2)",
            )
            for name, shared in (("", True), ("_own_negatives", False))
        ),
        # Those that decide first.
        _cifar10(16, like="k16"),
        _cifar10(16, like="k16_own_negatives", shared=False),
        _cifar10(511, like="k256"),
        _cifar10(16, like="k16_plain", eqco=False),
        _cifar10(256, like="k256_batch512"),
        _cifar10(256, like="k256_batch512_own_negatives", shared=False),
        *(
            _cifar10(k, like=f"k{k}{'' if eqco else '_plain'}", eqco=eqco)
            for k in (4, 64)
            for eqco in (True, False)
        ),
    ),
    varied="negatives K",
    # What EqCo gives is judged in eqco_negatives.
    claims=tuple(
        Claim(
            text=f"At K = {k}, {one} negatives keep the accuracy of {other} ones to 1 point.",
            better=f"cifar10_k{k}{better}",
            than=f"cifar10_k{k}{than}",
            margin=-1.0,
        )
        for k in (16, 256)
        for one, better, other, than in (
            ("shared", "", "own", "_own_negatives"),
            ("own", "_own_negatives", "shared", ""),
        )
    ),
)
