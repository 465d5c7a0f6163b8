"""Fast-MoCo against MoCo v3, at equal epochs and at equal wall clock."""

from selfsight.studies.study_types import Arm, Claim, Study, cifar10_arm

# MoCo v3 trains 12 % more images per second, so that 57 epochs take as long as Fast-MoCo's 50.
AS_LONG = {50: 57, 100: 114}
FAST, V3 = "orashi/Fast-MoCo, README", "facebookresearch/moco-v3, CONFIG.md"


def _cifar10(method: str, recipe: str, epochs: int, like: str = "") -> Arm:
    name = f"{method}_{epochs}ep"
    return cifar10_arm(name, recipe, {"epochs": epochs}, like=like, line=method, x=epochs)


STUDY = Study(
    name="fast_moco_epochs",
    paper="Fast-MoCo, arXiv:2207.08220, table 4; MoCo v3, arXiv:2104.02057",
    claim="Fast-MoCo reaches in 100 epochs what MoCo v3 needs several times as many for.",
    judged_by="Accuracy of Fast-MoCo against MoCo v3 at equal epochs, and at equal wall clock.",
    varied="epochs",
    arms=(
        *(
            Arm(
                name=f"fast_moco_{epochs}ep",
                recipe=f"fast_moco.imagenet_r50_{epochs}ep",
                published=top1,
                source=FAST,
                line="fast_moco",
                x=float(epochs),
            )
            for epochs, top1 in {100: 73.5, 200: 75.1, 400: 75.5}.items()
        ),
        *(
            Arm(
                name=f"mocov3_{epochs}ep",
                recipe=f"mocov3.imagenet_r50_{epochs}ep",
                published=top1,
                source=V3,
                line="mocov3",
                x=float(epochs),
            )
            for epochs, top1 in {100: 68.9, 300: 72.8, 1000: 74.6}.items()
        ),
        _cifar10("fast_moco", "fast_moco.cifar10_r18_200ep", 50),
        _cifar10("mocov3", "mocov3.cifar10_r18_100ep", 50),
        _cifar10("mocov3", "mocov3.cifar10_r18_100ep", AS_LONG[50]),
        _cifar10("mocov3", "mocov3.cifar10_r18_100ep", 75),
        _cifar10("fast_moco", "fast_moco.cifar10_r18_200ep", 100, "fast_moco_100ep"),
        _cifar10("mocov3", "mocov3.cifar10_r18_100ep", 100, "mocov3_100ep"),
        _cifar10("mocov3", "mocov3.cifar10_r18_100ep", AS_LONG[100]),
        _cifar10("mocov3", "mocov3.cifar10_r18_100ep", 150),
    ),
    claims=(
        *(
            Claim(
                text=f"Fast-MoCo beats MoCo v3 after {epochs} epochs.",
                better=f"cifar10_fast_moco_{epochs}ep",
                than=f"cifar10_mocov3_{epochs}ep",
            )
            for epochs in (50, 100)
        ),
        *(
            Claim(
                text=f"Fast-MoCo's {epochs} epochs beat MoCo v3 that trains as long by the clock.",
                better=f"cifar10_fast_moco_{epochs}ep",
                than=tuple(f"cifar10_mocov3_{n}ep" for n in (50, 57, 75, 100, 114, 150)),
            )
            for epochs in (50, 100)
        ),
    ),
)
