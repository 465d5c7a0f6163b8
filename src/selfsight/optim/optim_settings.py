"""Settings of an optimizer, and the defaults of each."""

from dataclasses import dataclass, field
from typing import Literal

from selfsight.check_settings import (
    BELOW_ONE,
    LEARNING_RATE,
    NOT_NEGATIVE,
    POSITIVE,
    Range,
    check_settings,
)
from selfsight.errors import UserError
from selfsight.optim.lars import LARSVariant
from selfsight.optim.lr_scaling import LRScaling
from selfsight.optim.schedules import Schedule

OptimizerName = Literal["sgd", "adamw", "lars", "lamb"]
PredictorLR = Literal["same", "constant"]

RANGES: dict[str, Range] = {
    "lr": LEARNING_RATE,
    "lr_1d": LEARNING_RATE,
    "momentum": BELOW_ONE,
    "betas": BELOW_ONE,
    "weight_decay": NOT_NEGATIVE,
    "trust_coefficient": POSITIVE,
    "clip": POSITIVE,
}


@dataclass(frozen=True, kw_only=True)
class Optim:
    """Settings of an optimizer. Defaults: SGD as in MoCo v2; see OPTIMS for the others."""

    name: OptimizerName = "sgd"
    lr: float = 0.03  # before scaling by the batch size
    scale: LRScaling = "linear"  # lr x batch / 256; "sqrt": lr x sqrt(batch); "none": lr
    momentum: float = 0.9  # sgd, lars
    nesterov: bool = False  # sgd
    betas: tuple[float, float] = (0.9, 0.999)  # adamw, lamb
    weight_decay: float = 1e-4
    exclude_1d: bool = False  # no weight decay and no adaptation for biases and norms
    lr_1d: float | None = None  # learning rate of biases and norms (Barlow Twins); None: lr
    trust_coefficient: float = 0.001  # lars
    variant: LARSVariant = "mocov3"  # lars
    clip: float | None = None  # largest joint norm of all gradients
    predictor_lr: PredictorLR = "same"  # "constant": the predictor stays at the peak
    schedule: Schedule = field(default_factory=lambda: Schedule(per_epoch=True))

    def __post_init__(self) -> None:
        check_settings(self, "optim.", RANGES)
        if self.nesterov and not (self.name == "sgd" and self.momentum > 0):
            raise UserError(
                "optim.nesterov needs SGD with momentum. Use optim.name sgd with a momentum "
                "above 0, or leave nesterov out."
            )


OPTIMS: dict[OptimizerName, Optim] = {
    "sgd": Optim(),
    # MoCo v3 with ViT: weight decay on all parameters, biases and norms included.
    "adamw": Optim(name="adamw", lr=1.5e-4, weight_decay=0.1, schedule=Schedule(warmup_epochs=40)),
    # MoCo v3 with ResNet-50, 300 epochs.
    "lars": Optim(
        name="lars",
        lr=0.3,
        weight_decay=1e-6,
        exclude_1d=True,
        schedule=Schedule(warmup_epochs=10),
    ),
    # The best of MoCo v3's ablation with ViT-B.
    "lamb": Optim(
        name="lamb",
        lr=5e-4,
        weight_decay=1e-3,
        exclude_1d=True,
        schedule=Schedule(warmup_epochs=40),
    ),
}
