"""SiMo: accuracy against EqCo's alpha at 256 negatives."""

from selfsight.studies.study_types import Arm, Claim, Study, cifar10_arm

PAPER = "EqCo, arXiv:2010.01929"
RECIPE = "simo.imagenet_r50_200ep"
TABLE_5 = {1024: 68.1, 4096: 68.1, 16384: 68.4, 65536: 68.5, 262144: 68.3}

# Prefix of the name, epochs, network, alpha, linear top-1 and its table.
LONGER_OR_WIDER = [
    ("800ep", 800, "resnet50", 256, 71.8, 2),
    ("800ep", 800, "resnet50", 65536, 72.1, 2),
    ("r50x2", 200, "resnet50x2", 256, 70.2, 7),
    ("r50x2", 200, "resnet50x2", 65536, 70.5, 7),
    ("r50x4", 200, "resnet50x4", 256, 71.9, 7),
    ("r50x4", 200, "resnet50x4", 65536, 72.3, 7),
]

STUDY = Study(
    name="simo_alpha",
    paper=f"{PAPER}, tables 2, 5 and 7",
    claim=(
        "A larger alpha, up to 65536, improves SiMo at 256 negatives, "
        "in longer runs and wider networks too."
    ),
    judged_by="Linear top-1 of alpha = 65536 against alpha = 256, at each length and width.",
    arms=(
        Arm(name="a256", recipe=RECIPE, published=68.0, source=f"{PAPER}, table 2"),
        *(
            Arm(
                name=f"a{alpha}",
                recipe=RECIPE,
                settings={"method.alpha": float(alpha)},
                published=top1,
                source=f"{PAPER}, table 5",
            )
            for alpha, top1 in TABLE_5.items()
        ),
        *(
            Arm(
                name=f"{prefix}_a{alpha}",
                recipe=RECIPE,
                settings={
                    "method.alpha": float(alpha),
                    "epochs": epochs,
                    "backbone.name": network,
                },
                published=top1,
                source=f"{PAPER}, table {table}",
            )
            for prefix, epochs, network, alpha, top1, table in LONGER_OR_WIDER
        ),
        # 50 epochs; each query has 256 of the 511 other keys of its batch. The ends decide.
        *(
            cifar10_arm(
                f"a{alpha}",
                "simo.cifar10_r18_200ep",
                {"method.num_negatives": 256, "method.alpha": float(alpha)},
                like=f"a{alpha}",
                line="K = 256",
                x=alpha,
            )
            for alpha in (256, 65536, 4096, 1024, 16384, 262144)
        ),
    ),
    varied="alpha",
    claims=(
        Claim(
            text="With 256 negatives, alpha = 65536 is better than alpha = 256.",
            better="cifar10_a65536",
            than="cifar10_a256",
        ),
    ),
)
