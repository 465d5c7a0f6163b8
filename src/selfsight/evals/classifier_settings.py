"""How a classifier is trained, as data: every number of a published protocol."""

from dataclasses import dataclass, replace
from typing import Any

from selfsight.errors import UserError
from selfsight.optim import Optim, Schedule
from selfsight.views import EvalView, View
from selfsight.views.spec import Interpolation

MOST_MAGNITUDE = 10.0  # timm's scale of RandAugment


@dataclass(frozen=True, kw_only=True)
class Regularization:
    """The regularization of DeiT (arXiv:2012.12877); all of it off by default."""

    rand_augment: float | None = None  # magnitude, from 0 to 10; None: off
    rand_augment_std: float = 0.5
    smoothing: float = 0.0
    mixup: float = 0.0  # of Beta(mixup, mixup); 0: off
    cutmix: float = 0.0
    erase: float = 0.0  # share of images
    drop_path: float = 0.0  # of the last block; falls to 0 at the first
    ema: float | None = None  # of the weights' moving average, which is scored beside
    repeats: int = 1  # views of each image in a batch; an epoch sees as many fewer images
    layer_decay: float | None = None  # factor on the rate from each layer to the one before

    def __post_init__(self) -> None:
        for name in ("smoothing", "erase", "drop_path"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"strong.{name} is {getattr(self, name)}. Give 0 to below 1.")
        for name in ("mixup", "cutmix", "rand_augment_std"):
            if getattr(self, name) < 0:
                raise UserError(f"strong.{name} is {getattr(self, name)}. Give 0 or more.")
        for name in ("ema", "layer_decay"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1:
                raise UserError(f"strong.{name} is {value}. Give a number above 0 and up to 1.")
        if self.rand_augment is not None and not 0 <= self.rand_augment <= MOST_MAGNITUDE:
            raise UserError(f"strong.rand_augment is {self.rand_augment}. Give 0 to 10, or none.")
        if self.repeats < 1:
            raise UserError(f"strong.repeats is {self.repeats}. Give 1 or more.")


@dataclass(frozen=True, kw_only=True)
class ClassifierSettings:
    """A head, and maybe the backbone under it, on random crops with flips."""

    source: str  # who published these settings, and what of them is ours
    epochs: int
    batch_size: int
    head: Optim
    backbone: Optim | None = None  # None: frozen, in evaluation mode
    rates: tuple[float, ...] = ()
    """Rates of the head that are tried, a held-out tenth choosing; empty: head.lr alone."""
    scale: tuple[float, float] = (0.08, 1.0)
    interpolation: Interpolation = "bilinear"
    head_std: float = 0.01
    strong: Regularization = Regularization()

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1:
            raise UserError(
                f"epochs is {self.epochs} and batch_size {self.batch_size}. Both must be 1 or more."
            )
        if self.rates and min(self.rates) <= 0:
            raise UserError(f"rates is {self.rates}. Give numbers above 0.")
        for optim in (self.head, self.backbone):
            if optim is not None:
                optim.check(epochs=self.epochs)

    def lasting(self, epochs: int) -> "Training":
        """The same for another number of epochs: warm-up and steps keep their shares of it."""
        if epochs < 1:
            raise UserError(f"epochs is {epochs}. Give 1 or more.")
        factor = epochs / self.epochs
        backbone = None if self.backbone is None else _stretched(self.backbone, factor)
        return replace(self, epochs=epochs, head=_stretched(self.head, factor), backbone=backbone)

    def view(self, spec: EvalView) -> View:
        """The random crop and flip, of the evaluation view's size and statistics."""
        return View(
            size=spec.size,
            scale=self.scale,
            interpolation=self.interpolation,
            jitter_p=0.0,
            gray=0.0,
            blur=0.0,
            mean=spec.mean,
            std=spec.std,
        )


def _stretched(optim: Optim, factor: float) -> Optim:
    schedule = optim.schedule
    milestones = tuple(m * factor for m in schedule.milestones)
    warmup = schedule.warmup_epochs * factor
    return replace(optim, schedule=replace(schedule, milestones=milestones, warmup_epochs=warmup))


def sgd(lr: float, schedule: Schedule, **settings: Any) -> Optim:
    """SGD with momentum 0.9, no decay and an absolute rate, unless told otherwise."""
    defaults: dict[str, Any] = {"scale": "none", "weight_decay": 0.0}
    return Optim(name="sgd", lr=lr, schedule=schedule, **(defaults | settings))


COSINE = Schedule(per_epoch=True)


def falling(*milestones: int | float, gamma: float = 0.1) -> Schedule:
    """The rate times gamma at each of these epochs."""
    return Schedule(name="step", milestones=milestones, gamma=gamma, per_epoch=True)
