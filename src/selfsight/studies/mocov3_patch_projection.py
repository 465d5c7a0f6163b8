"""MoCo v3: a frozen random patch projection against a learned one."""

from selfsight.studies.study_types import Arm, Claim, Study, cifar10_arm

# Linear top-1 by learning rate in units of 1e-4.
LEARNED = {0.5: 70.4, 1.0: 72.2, 1.5: 71.7}
RANDOM = {0.5: 70.8, 1.0: 72.8, 1.5: 73.4}

# On CIFAR-10 a small ViT with patches of 4 pixels, 50 epochs, by learning rate in units of 1e-4.
CIFAR10 = (5, 10, 20)

STUDY = Study(
    name="mocov3_patch_projection",
    paper="MoCo v3, arXiv:2104.02057, section 4.2",
    claim="A frozen random patch projection trains more steadily and to a higher accuracy.",
    judged_by=(
        "Linear top-1 of random against learned at each learning rate; "
        "dips of `online_knn`, counted."
    ),
    varied="learning rate x 1e4",
    arms=(
        *(
            Arm(
                name=f"{projection}_lr{10 * lr:02.0f}",
                recipe="mocov3.imagenet_vit_b16_300ep",
                settings={
                    "epochs": 100,
                    "optim.lr": lr * 1e-4,
                    "backbone.freeze_patch": projection == "random",
                },
                published=top1,
                source="MoCo v3, section 4.2",
                line=projection,
                x=lr,
            )
            for projection, numbers in (("learned", LEARNED), ("random", RANDOM))
            for lr, top1 in numbers.items()
        ),
        *(
            cifar10_arm(
                f"{projection}_lr{lr:02d}",
                "mocov3.cifar10_vit_t4_200ep",
                {
                    "optim.lr": lr * 1e-4,
                    "optim.schedule.warmup_epochs": 10.0,
                    "backbone.freeze_patch": projection == "random",
                },
                line=projection,
                x=lr,
            )
            for lr in CIFAR10
            for projection in ("learned", "random")
        ),
    ),
    claims=(
        *(
            Claim(
                text=f"A frozen patch projection is better at learning rate {lr}e-4.",
                better=f"cifar10_random_lr{lr:02d}",
                than=f"cifar10_learned_lr{lr:02d}",
            )
            for lr in CIFAR10
        ),
        *(
            Claim(
                text=(
                    f"A frozen patch projection is steadier at learning rate {lr}e-4: fewer dips "
                    "(the difference is in dips)."
                ),
                better=f"cifar10_random_lr{lr:02d}",
                than=f"cifar10_learned_lr{lr:02d}",
                measure="dips",
            )
            for lr in CIFAR10
        ),
    ),
)
