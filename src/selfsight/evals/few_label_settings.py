"""Published settings of training with few labels (1 % and 10 % of ImageNet), by paper."""

from dataclasses import replace
from typing import Any

from selfsight.evals.classifier_settings import COSINE, ClassifierSettings, sgd, step_schedule
from selfsight.evals.label_subsets import LabelAmount
from selfsight.optim import Optim, Schedule

HEAD_LRS = (0.05, 0.5, 5.0, 50.0, 500.0)


def sgd_settings(
    source: str,
    head: float,
    backbone: float | None,
    schedule: Schedule,
    *,
    epochs: int,
    batch_size: int = 256,
    nesterov: bool = False,
    head_lrs: tuple[float, ...] = (),
) -> ClassifierSettings:
    """SGD with one learning rate for the head and one for the backbone; None: frozen."""
    return ClassifierSettings(
        source=source,
        epochs=epochs,
        batch_size=batch_size,
        head=sgd(head, schedule, nesterov=nesterov),
        backbone=None if backbone is None else sgd(backbone, schedule, nesterov=nesterov),
        head_lrs=head_lrs,
    )


def drop_twice(epochs: int) -> Schedule:
    """Multiply the learning rate by 0.2 at 60 % and at 80 % of the epochs."""
    return step_schedule(0.6 * epochs, 0.8 * epochs, gamma=0.2)


FAST_MOCO = (
    "Fast-MoCo (arXiv:2207.08220), supplement; the head's learning rate is printed as 5e2, which "
    "may mean 5e-2, so several are tried"
)
MSBREG = (
    "MSBReg (arXiv:2207.03552), supplement 2.2; it follows BYOL and states neither epochs nor "
    "schedule: 50 epochs, and x0.2 at 60 % and 80 %, are ours"
)
SWAV = "SwAV (arXiv:2006.09882): facebookresearch/swav, eval_semisup.py"
BARLOW = "Barlow Twins (arXiv:2103.03230): facebookresearch/barlowtwins, README"
VICREG = "VICReg (arXiv:2105.04906): facebookresearch/vicreg, README"
SIMCLR = "SimCLR (arXiv:2002.05709): google-research/simclr, README; the head without adaptation"


def simclr(epochs: int) -> ClassifierSettings:
    """LARS for the backbone at lr 0.005 x sqrt(batch), SGD with momentum for the head."""
    shared: dict[str, Any] = {"lr": 0.005, "scale": "sqrt", "weight_decay": 0.0}
    return ClassifierSettings(
        source=SIMCLR,
        epochs=epochs,
        batch_size=1024,
        head=Optim(name="sgd", schedule=Schedule(), **shared),
        backbone=Optim(
            name="lars", variant="simclr", exclude_1d=True, schedule=Schedule(), **shared
        ),
    )


ONE, TEN = LabelAmount(share=0.01), LabelAmount(share=0.1)
PUBLISHED: dict[str, tuple[LabelAmount, ClassifierSettings]] = {
    "fast_moco_1": (
        ONE,
        replace(
            sgd_settings(
                FAST_MOCO, 0.05, None, drop_twice(60), epochs=60, nesterov=True, head_lrs=HEAD_LRS
            ),
            interpolation="bicubic",  # as in its pretraining and its linear protocol
        ),
    ),
    "fast_moco_10": (
        TEN,
        replace(
            sgd_settings(
                FAST_MOCO, 0.05, 1e-6, drop_twice(20), epochs=20, nesterov=True, head_lrs=HEAD_LRS
            ),
            interpolation="bicubic",  # as in its pretraining and its linear protocol
        ),
    ),
    "msbreg_1": (
        ONE,
        sgd_settings(MSBREG, 2.0, None, drop_twice(50), epochs=50, nesterov=True, batch_size=1024),
    ),
    "msbreg_10": (
        TEN,
        sgd_settings(
            MSBREG, 0.25, 2.5e-4, drop_twice(50), epochs=50, nesterov=True, batch_size=1024
        ),
    ),
    "swav_1": (ONE, sgd_settings(SWAV, 5.0, 0.02, drop_twice(20), epochs=20)),
    "swav_10": (TEN, sgd_settings(SWAV, 0.2, 0.01, drop_twice(20), epochs=20)),
    "barlow_twins_1": (ONE, sgd_settings(BARLOW, 0.5, 0.005, COSINE, epochs=20)),
    "barlow_twins_10": (
        TEN,
        sgd_settings(f"{BARLOW}, which gives 1 % alone: the same", 0.5, 0.005, COSINE, epochs=20),
    ),
    "vicreg_1": (ONE, sgd_settings(VICREG, 0.08, 0.03, COSINE, epochs=20)),
    "vicreg_10": (TEN, sgd_settings(VICREG, 0.1, 0.01, COSINE, epochs=20)),
    "simclr_1": (ONE, simclr(60)),
    "simclr_10": (TEN, simclr(30)),
}


# Without training: logistic regression on features, as in linear_lbfgs.py.
SOLVED: dict[str, LabelAmount] = {"linear_1": ONE, "linear_10": TEN}
