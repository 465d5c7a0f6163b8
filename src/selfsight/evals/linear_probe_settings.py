"""Published linear-probe settings: a linear layer on a frozen backbone, with augmentation.

Settings are those of the papers and their released code. Learning rates differ by orders of
magnitude because the scales of features do; the solved probe of `linear_lbfgs.py` has none.
"""

from dataclasses import replace

from selfsight.evals.classifier_settings import COSINE, ClassifierSettings, sgd, step_schedule
from selfsight.optim import Optim, Schedule


def linear(source: str, head: Optim, *, epochs: int, batch_size: int = 256) -> ClassifierSettings:
    """Settings of a head on a frozen backbone."""
    return ClassifierSettings(source=source, epochs=epochs, batch_size=batch_size, head=head)


MOCO = linear(
    "MoCo v1, v2 (arXiv:1911.05722, 2003.04297): facebookresearch/moco, main_lincls.py",
    sgd(30.0, step_schedule(60, 80)),
    epochs=100,
)
MOCOV3 = linear(
    "MoCo v3, ResNet-50 (arXiv:2104.02057): facebookresearch/moco-v3, main_lincls.py",
    sgd(0.1, COSINE, scale="linear"),
    epochs=90,
    batch_size=1024,
)
FAST_MOCO = replace(
    linear(
        "Fast-MoCo (arXiv:2207.08220), supplement: its own LARS, biases adapted too",
        Optim(
            name="lars",
            variant="fastmoco",
            lr=0.8,
            scale="none",
            weight_decay=0.0,
            schedule=Schedule(),
        ),
        epochs=90,
        batch_size=4096,
    ),
    interpolation="bicubic",
)
BYOL = linear(
    "BYOL (arXiv:2006.07733), appendix C.1",
    sgd(0.2, Schedule(), scale="linear", nesterov=True),
    epochs=80,
    batch_size=1024,
)
SWAV = linear(
    "SwAV (arXiv:2006.09882): facebookresearch/swav, eval_linear.py",
    sgd(0.3, COSINE, weight_decay=1e-6),
    epochs=100,
)

PUBLISHED: dict[str, ClassifierSettings] = {
    "moco": MOCO,
    "jcl": replace(MOCO, source="JCL (arXiv:2009.14776): MoCo's"),
    "jcl_imagenet100": linear(
        "JCL (arXiv:2009.14776), ImageNet-100", sgd(10.0, step_schedule(60, 80)), epochs=100
    ),
    "simo": replace(MOCO, source="SiMo, with EqCo (arXiv:2010.01929): MoCo's, shorter", epochs=90),
    "mocov3_resnet": MOCOV3,
    "mocov3_vit": replace(
        MOCOV3,
        source="MoCo v3, ViT (arXiv:2104.02057): facebookresearch/moco-v3, CONFIG.md",
        head=replace(MOCOV3.head, lr=3.0),
    ),
    "simsiam": linear(
        "SimSiam (arXiv:2011.10566): facebookresearch/simsiam, main_lincls.py --lars (apex LARC)",
        Optim(
            name="lars",
            variant="larc",
            lr=0.1,
            scale="linear",
            weight_decay=0.0,
            schedule=COSINE,
        ),
        epochs=90,
        batch_size=4096,
    ),
    "fast_moco_90": FAST_MOCO,
    "fast_moco_10": replace(
        FAST_MOCO,
        source="Fast-MoCo (arXiv:2207.08220), supplement: for pretraining of 20 epochs",
        epochs=10,
        head=replace(FAST_MOCO.head, lr=1.6),
    ),
    "byol": BYOL,
    "msbreg": replace(BYOL, source="MSBReg (arXiv:2207.03552) follows BYOL's linear evaluation"),
    "simclr": linear(
        "SimCLR (arXiv:2002.05709), appendix B.6; its schedule without warm-up",
        sgd(0.1, Schedule(), scale="linear", nesterov=True),
        epochs=90,
        batch_size=4096,
    ),
    "swav": SWAV,
    "barlow_twins": replace(
        SWAV, source="Barlow Twins (arXiv:2103.03230): facebookresearch/barlowtwins, evaluate.py"
    ),
    "vicreg": replace(
        SWAV,
        source="VICReg (arXiv:2105.04906): facebookresearch/vicreg, evaluate.py",
        head=replace(SWAV.head, lr=0.02),
    ),
}
