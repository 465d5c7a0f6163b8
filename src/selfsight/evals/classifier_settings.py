"""Settings with which a classifier is trained: every number of a published protocol."""

from dataclasses import dataclass, replace
from typing import Any

from selfsight.data.eval_transform import EvalTransform, Interpolation
from selfsight.errors import check_number
from selfsight.optim import Optim, Schedule
from selfsight.views import View

MAX_MAGNITUDE = 10.0  # of timm's RandAugment


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
        for name in ("label_smoothing", "random_erasing", "drop_path"):
            check_number(f"regularization.{name}", getattr(self, name), at_least=0, below=1)
        for name in ("mixup", "cutmix", "rand_augment_std"):
            check_number(f"regularization.{name}", getattr(self, name), at_least=0)
        for name in ("ema_decay", "layer_decay"):
            value = getattr(self, name)
            check_number(f"regularization.{name}", value, above=0, at_most=1, optional=True)
        magnitude = self.rand_augment
        check_number(
            "regularization.rand_augment",
            magnitude,
            at_least=0,
            at_most=MAX_MAGNITUDE,
            optional=True,
        )
        check_number("regularization.repeats", self.repeats, at_least=1)


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
        check_number("epochs", self.epochs, at_least=1)
        check_number("batch_size", self.batch_size, at_least=1)
        for lr in self.head_lrs:
            check_number("head_lrs", lr, above=0)
        for optim in (self.head, self.backbone):
            if optim is not None:
                optim.schedule.check(self.epochs)

    def with_epochs(self, epochs: int) -> "ClassifierSettings":
        """Return the settings for other epochs; warm-up and milestones scale with them."""
        check_number("epochs", epochs, at_least=1)
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
            mean=transform.mean,
            std=transform.std,
        )


def _scale_schedule(optim: Optim, factor: float) -> Optim:
    schedule = optim.schedule
    milestones = tuple(m * factor for m in schedule.milestones)
    warmup = schedule.warmup_epochs * factor
    return replace(optim, schedule=replace(schedule, milestones=milestones, warmup_epochs=warmup))


def sgd(lr: float, schedule: Schedule, **settings: Any) -> Optim:
    """SGD with momentum 0.9; by default no weight decay, and lr does not scale with the batch."""
    defaults: dict[str, Any] = {"scale": "none", "weight_decay": 0.0}
    return Optim(name="sgd", lr=lr, schedule=schedule, **(defaults | settings))


COSINE = Schedule(per_epoch=True)


def step_schedule(*milestones: int | float, gamma: float = 0.1) -> Schedule:
    """Multiply the learning rate by gamma at each of these epochs."""
    return Schedule(name="step", milestones=milestones, gamma=gamma, per_epoch=True)
