"""MoCo v3: the learning rate of LAMB on ViT-B/16; on CIFAR-10, LAMB and AdamW on a small ViT."""

from dataclasses import replace

from selfsight.optim import OPTIMS, Optim, Schedule
from selfsight.studies.study_types import Arm, Claim, Study, cifar10_arm

# Linear top-1 by learning rate in units of 1e-4, at batch 4096.
PUBLISHED = {3.0: 71.6, 5.0: 72.5, 6.0: 70.9, 8.0: 66.5}


def _cifar10(name: str, optim: Optim, *, like: str = "") -> Arm:
    """A small ViT, 50 epochs, batch 512; the name has the learning rate before scaling x 1e4."""
    return cifar10_arm(
        f"{name}_lr{10000 * optim.lr:02.0f}",
        "mocov3.cifar10_vit_t4_200ep",
        {
            "optim": replace(optim, schedule=Schedule(warmup_epochs=10.0)),
            "backbone.freeze_patch": False,
        },
        like=like,
        line=name,
        x=round(2000 * optim.lr, 4),
    )


def _lamb(lr: float) -> Arm:
    """The peak of the paper's learning rate: its batch is eight times as large."""
    return _cifar10("lamb", replace(OPTIMS["lamb"], lr=8e-4 * lr), like=f"lr{lr:.0f}")


def _adamw(lr: float) -> Arm:
    """The recipe's optimizer."""
    return _cifar10("adamw", replace(OPTIMS["adamw"], lr=lr, weight_decay=0.05))


STUDY = Study(
    name="mocov3_lamb",
    paper="MoCo v3, arXiv:2104.02057, figure 3",
    claim="LAMB reaches the accuracy of AdamW, but only in a narrow range of learning rates.",
    judged_by="Linear top-1 at the best learning rate against AdamW's, and against its neighbors.",
    arms=(
        *(
            Arm(
                name=f"lr{lr:.0f}",
                recipe="mocov3.imagenet_vit_b16_300ep",
                settings={
                    "epochs": 100,
                    "optim": replace(OPTIMS["lamb"], lr=lr * 1e-4),
                    "backbone.freeze_patch": False,
                },
                published=top1,
                source="MoCo v3, figure 3",
            )
            for lr, top1 in PUBLISHED.items()
        ),
        _lamb(5.0),
        _adamw(5e-4),
        _lamb(8.0),
        _lamb(3.0),
        _lamb(6.0),
        _adamw(1e-3),
        _adamw(2e-3),
    ),
    varied="peak learning rate x 1e3",
    claims=(
        Claim(
            text="LAMB at the paper's best peak, 8e-3, keeps the accuracy of AdamW to 1 point.",
            better="cifar10_lamb_lr40",
            than="cifar10_adamw_lr05",
            margin=-1.0,
        ),
        Claim(
            text="LAMB's range is narrow: 1.6 times the best peak is worse by more than 1 point.",
            better="cifar10_lamb_lr40",
            than="cifar10_lamb_lr64",
            margin=1.0,
        ),
    ),
)
