"""Settings with which a classifier is trained: every number of a published protocol."""

from dataclasses import dataclass, replace
from typing import Any

from selfsight.check_settings import (
    BELOW_ONE,
    COUNT,
    EPOCHS,
    FEW,
    LEARNING_RATE,
    NOT_NEGATIVE,
    POSITIVE_SHARE,
    Range,
    check_setting,
    check_settings,
)
from selfsight.data.eval_transform import EvalTransform, Interpolation
from selfsight.errors import UserError
from selfsight.optim import Optim, Schedule
from selfsight.views import View

MAX_MAGNITUDE = 10.0  # of timm's RandAugment
REGULARIZATION_RANGES: dict[str, Range] = {
    **dict.fromkeys(("label_smoothing", "random_erasing", "drop_path"), BELOW_ONE),
    **dict.fromkeys(("mixup", "cutmix", "rand_augment_std"), NOT_NEGATIVE),
    **dict.fromkeys(("ema_decay", "layer_decay"), POSITIVE_SHARE),
    "rand_augment": Range(0, MAX_MAGNITUDE),
    "repeats": FEW,
}
TRAINED_ONLY = ("drop_path", "layer_decay")  # regularization of a backbone that is trained
RANGES: dict[str, Range] = {
    "epochs": EPOCHS,
    "batch_size": COUNT,
    "head_lrs": LEARNING_RATE,
    "crop_scale": POSITIVE_SHARE,
    "head_init_std": NOT_NEGATIVE,
}


@dataclass(frozen=True, kw_only=True)
class Regularization:
    """The regularization of DeiT (arXiv:2012.12877); all of it is off by default."""

    rand_augment: float | None = None  # magnitude, from 0 to 10; None: off
    rand_augment_std: float = 0.5
    label_smoothing: float = 0.0
    mixup: float = 0.0  # alpha of Beta(alpha, alpha); 0: off
    cutmix: float = 0.0
    random_erasing: float = 0.0  # probability for each image
    drop_path: float = 0.0  # of the last block; falls linearly to 0 at the first
    ema_decay: float | None = None  # of the weights' moving average, which is scored too
    repeats: int = 1  # views of each image in a batch; an epoch has fewer different images
    layer_decay: float | None = None  # factor on the learning rate from each layer to the previous

    def __post_init__(self) -> None:
        check_settings(self, "regularization.", REGULARIZATION_RANGES)


@dataclass(frozen=True, kw_only=True)
class ClassifierSettings:
    """Train a linear head, and the backbone if it is not frozen, on random crops with flips."""

    source: str  # who published these settings, and which of them are ours
    epochs: int
    batch_size: int
    head: Optim
    backbone: Optim | None = None  # None: frozen, in evaluation mode
    head_lrs: tuple[float, ...] = ()
    """Learning rates to try for the head; a held-out tenth selects one. Empty: head.lr."""
    crop_scale: tuple[float, float] = (0.08, 1.0)
    interpolation: Interpolation = "bilinear"
    head_init_std: float = 0.01
    regularization: Regularization = Regularization()

    def __post_init__(self) -> None:
        check_settings(self, "", RANGES)
        for name, optim in (("head", self.head), ("backbone", self.backbone)):
            if optim is not None:
                optim.schedule.check(self.epochs, warmup=f"{name}.schedule.warmup_epochs")
        for name in TRAINED_ONLY if self.backbone is None else ():
            if getattr(self.regularization, name):
                raise UserError(
                    f"regularization.{name} is {getattr(self.regularization, name)}, but the "
                    "backbone is frozen, so that it has no effect. Leave it out, or use a protocol "
                    "that trains the backbone, such as fine_tune.cifar10."
                )

    def with_epochs(self, epochs: int) -> "ClassifierSettings":
        """Return the settings for other epochs; warm-up and milestones scale with them.

        With fewer epochs the learning rate changes at every step: if it changed once per epoch, a
        warm-up shorter than an epoch would last a whole one, and milestones within the last epoch
        would be lost.
        """
        check_setting("epochs", epochs, int, EPOCHS)
        factor = epochs / self.epochs
        backbone = None if self.backbone is None else _scale_schedule(self.backbone, factor)
        head = _scale_schedule(self.head, factor)
        return replace(self, epochs=epochs, head=head, backbone=backbone)

    def view(self, transform: EvalTransform) -> View:
        """The random crop and flip, with the size and statistics of the evaluation transform."""
        return View(
            size=transform.size,
            scale=self.crop_scale,
            interpolation=self.interpolation,
            jitter_p=0.0,
            gray=0.0,
            blur=0.0,
            low=transform.low,
            high=transform.high,
            mean=transform.mean,
            std=transform.std,
        )


def _scale_schedule(optim: Optim, factor: float) -> Optim:
    schedule = optim.schedule
    scaled = replace(
        schedule,
        milestones=tuple(m * factor for m in schedule.milestones),
        warmup_epochs=schedule.warmup_epochs * factor,
        per_epoch=schedule.per_epoch and factor >= 1,
    )
    return replace(optim, schedule=scaled)


def sgd(lr: float, schedule: Schedule, **settings: Any) -> Optim:
    """SGD with momentum 0.9; by default no weight decay, and lr does not scale with the batch."""
    defaults: dict[str, Any] = {"scale": "none", "weight_decay": 0.0}
    return Optim(name="sgd", lr=lr, schedule=schedule, **(defaults | settings))


COSINE = Schedule(per_epoch=True)


def step_schedule(*milestones: int | float, gamma: float = 0.1) -> Schedule:
    """Multiply the learning rate by gamma at each of these epochs."""
    return Schedule(name="step", milestones=milestones, gamma=gamma, per_epoch=True)
