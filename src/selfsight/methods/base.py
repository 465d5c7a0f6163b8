"""The contract that every method keeps: forward computes, after_step changes state."""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64, Shaped
from torch import Tensor, nn

from selfsight import dist, rng
from selfsight.check_settings import (
    COUNT,
    FEW,
    POSITIVE,
    SHARE,
    WIDTH,
    Range,
    check_settings,
)
from selfsight.errors import UserError
from selfsight.nn import Backbone, Encoder, Teacher
from selfsight.nn.batch_norm import BatchNormMode, convert_batch_norm
from selfsight.nn.group_and_layer_norm import Norm, replace_batch_norm
from selfsight.views import View, small_crop

Views = list[Float[Tensor, "n c _ _"]]
RANGES: dict[str, Range] = {  # of numeric settings that several methods have
    "alpha": POSITIVE,
    "bn_group": COUNT,
    "dim": WIDTH,
    "hidden_dim": WIDTH,
    "momentum": SHARE,
    "momentum_end": SHARE,
    "num_layers": FEW,
    "num_negatives": COUNT,
    "num_small": Range(0, 100),
    "num_views": Range(2, 100),
    "predictor_dim": WIDTH,
    "queue_size": COUNT,
    "temperature": POSITIVE,
}


class Step(NamedTuple):
    """What one forward pass hands to the training loop and to `after_step`."""

    loss: Float[Tensor, ""]
    features: Float[Tensor, "n d"]  # of the first view, before the projector; probes read it
    update: dict[str, Tensor] = {}  # noqa: RUF012  # detached tensors that `after_step` needs
    logs: dict[str, Tensor] = {}  # noqa: RUF012
    frozen: dict[str, Bool[Tensor, ""]] = {}  # noqa: RUF012  # parameters that may not learn now
    skipped: Float[Tensor, ""] | None = None  # 1: the gradient was not finite; set by the loop


class DataInfo(NamedTuple):
    """What a method may know about the data before training."""

    num_images: int = 0
    num_classes: int = 0


NO_DATA_INFO = DataInfo()


@dataclass(frozen=True, kw_only=True)
class Moment:
    """The current step of training, and random numbers that depend only on it.

    They are keyed by seed, step and image: equal on any number of processes. `Moment(step=7)` is
    enough for most methods; the schedule of a teacher's momentum needs `total_steps`, JCL and SwAV
    need `steps_per_epoch`, InstDisc the images' `index`.
    """

    step: Int64[Tensor, ""] | int = 0  # on the device, so that a new step recompiles nothing
    index: Int64[Tensor, " n"] | None = None  # of the images in the data set
    seed: int = 0
    total_steps: int = 1
    steps_per_epoch: int = 1
    labels: Int64[Tensor, " n"] | None = None  # only for a method that `needs_labels`

    def step_on(self, device: torch.device) -> Int64[Tensor, ""]:
        """The step as a tensor on this device."""
        return torch.as_tensor(self.step, device=device)

    @property
    def progress(self) -> Float64[Tensor, ""]:
        """Share of training done before this step."""
        return torch.as_tensor(self.step).double() / self.total_steps

    @property
    def next_progress(self) -> Float64[Tensor, ""]:
        """Share of training done after this step."""
        return (torch.as_tensor(self.step) + 1).double() / self.total_steps

    @property
    def epochs_begun(self) -> Float64[Tensor, ""]:
        """Share of all epochs that have begun, this one included."""
        epoch = torch.as_tensor(self.step) // self.steps_per_epoch + 1
        return epoch.double() * self.steps_per_epoch / self.total_steps

    def uniform(
        self, name: str, x: Shaped[Tensor, "n ..."], count: int
    ) -> Float64[Tensor, "n count"]:
        """Numbers in [0, 1), one row for each image of x."""
        index = self._index(x)
        return rng.uniform(rng.key(self.seed, name), index, count, self.step_on(x.device))

    def normal(
        self, name: str, x: Shaped[Tensor, "n ..."], count: int
    ) -> Float64[Tensor, "n count"]:
        """Standard normal numbers, one row for each image of x."""
        index = self._index(x)
        return rng.normal(rng.key(self.seed, name), index, count, self.step_on(x.device))

    def permutation(self, name: str, n: int, device: torch.device) -> Int64[Tensor, " n"]:
        """One order of n things, the same on every process."""
        return rng.permutation(rng.key(self.seed, name), n, self.step_on(device), device)

    def shared_normal(
        self, name: str, rows: int, count: int, device: torch.device
    ) -> Float64[Tensor, "rows count"]:
        """Standard normal numbers of the step, the same on every process."""
        index = torch.arange(rows, device=device)
        return rng.normal(rng.key(self.seed, name), index, count, self.step_on(device))

    def choices(
        self, name: str, x: Shaped[Tensor, "n ..."], count: int, *, among: int
    ) -> Int64[Tensor, "n count"]:
        """For each image of x, `count` of `among` things, without repetition."""
        return self.uniform(name, x, among).sort(dim=1, stable=True).indices[:, :count]

    def _index(self, x: Shaped[Tensor, "n ..."]) -> Int64[Tensor, " n"]:
        """Indices of the images; without any given, their positions in the global batch."""
        if self.index is not None:
            return self.index
        return dist.rank() * len(x) + torch.arange(len(x), device=x.device)


class Method(nn.Module):
    """Views in, loss out.

    The loop calls forward, backward, optimizer.step and after_step, in that order. `forward`
    changes nothing but batch-norm statistics; every other state changes in `after_step`.
    """

    features_of: ClassVar[Literal["student", "teacher"]] = "student"  # whose features a Step holds

    student: Encoder

    def forward(self, views: Views, at: Moment) -> Step:
        """Compute the loss from the views and the current state."""
        raise NotImplementedError

    def after_step(self, at: Moment, step: Step) -> None:
        """Update teacher, queue or memory bank, once per optimizer step.

        Where `step.skipped` is 1 nothing may change; it is a device scalar that masks every write.
        """


@dataclass(frozen=True, kw_only=True)
class MethodConfig:
    """The settings of one method."""

    has_keys: ClassVar[bool] = False  # has keys whose batch norm can be shuffled
    needs_labels: ClassVar[bool] = False  # only the supervised baseline
    needs_memory_bank: ClassVar[bool] = False  # stores `dim` numbers for each image of the data
    info_nce: ClassVar[bool] = False  # its loss is InfoNCE: the mutual-information bound applies
    ranges: ClassVar[dict[str, Range]] = {}  # of this method's own settings, beside RANGES

    bn: BatchNormMode = "sync"
    """Batch norm over the whole global batch, or over groups of bn_group images; `shuffle` also
    permutes the images that the teacher encodes."""
    bn_group: int = 32
    norm: Norm = "bn"
    """Norm of backbone and heads: batch norm, layer norm, or group norm with weight-standardized
    convolutions."""

    def build(self, backbone: Backbone, data: DataInfo = NO_DATA_INFO) -> Method:
        """Validate the settings and build the method with new weights around this backbone."""
        self.validate()
        method = self.create(backbone, data)
        convert_batch_norm(method, None if self.bn == "sync" else self.bn_group)
        if self.bn != "sync" and isinstance(teacher := getattr(method, "teacher", None), Teacher):
            convert_batch_norm(teacher, self.bn_group * teacher.num_keys)
        if self.norm != "bn":
            replace_batch_norm(method, self.norm)
        return method

    def create(self, backbone: Backbone, data: DataInfo) -> Method:
        """Create the method; `build` calls this and then sets the groups of its norm layers."""
        raise NotImplementedError

    def validate(self) -> None:
        """Raise a UserError for a setting of another type or out of its range."""
        check_settings(self, "method.", RANGES | self.ranges)
        if self.bn == "shuffle" and not self.has_keys:
            raise UserError(
                'method.bn is "shuffle", but this method has no keys to shuffle. Use "sync" or '
                '"split".'
            )

    def validate_batch_size(self, batch_size: int) -> None:
        """Raise a UserError for settings that cannot work with this batch size."""

    def validate_views(self, sizes: tuple[int, ...]) -> None:
        """Raise a UserError for views of these widths that the method cannot use."""

    @property
    def num_views(self) -> int:
        """How many views of each image `forward` takes."""
        return 2

    def match_views(self, views: tuple[View, ...]) -> tuple[View, ...]:
        """Repeat the last view, or drop the last ones, until there are `num_views`."""
        return views[: self.num_views] + views[-1:] * (self.num_views - len(views))

    @property
    def info_nce_scale(self) -> float:
        """Factor between the loss and InfoNCE, if `info_nce` is true."""
        return 1.0

    def chance_loss(self, batch_size: int) -> float | None:
        """The loss of guessing, if the loss is a classification."""
        return None


@dataclass(frozen=True, kw_only=True)
class MultiCropConfig(MethodConfig):
    """The settings of a method that takes large and small crops of each image in one batch."""

    num_small: int
    """Small views beside the large ones."""

    @property
    def num_large(self) -> int:
        """How many large views of each image `forward` takes, before the small ones."""
        return 2

    @property
    def num_views(self) -> int:
        """The large ones and the small ones."""
        return self.num_large + self.num_small

    def validate(self) -> None:
        """Views of an image are in one batch, so batch norm must be over all of it."""
        MethodConfig.validate(self)
        if self.bn != "sync":
            raise UserError(
                f'method.bn is "{self.bn}", but several views of an image are in one batch here, '
                'so groups would depend on the number of processes. Use method.bn "sync".'
            )

    def match_views(self, views: tuple[View, ...]) -> tuple[View, ...]:
        """Repeat or drop the large views, as wide as the first, and the small ones.

        A recipe without small views gets SwAV's.
        """
        large = tuple(view for view in views if view.size == views[0].size)
        small = tuple(view for view in views if view.size != views[0].size)
        small = small or (small_crop(views[0]),)
        large = large[: self.num_large] + large[-1:] * (self.num_large - len(large))
        return large + small[: self.num_small] + small[-1:] * (self.num_small - len(small))


def check_queue_holds_batch(queue_size: int, batch_size: int) -> None:
    """Raise a UserError for a queue that is shorter than one batch."""
    if queue_size < batch_size:
        raise UserError(
            f"method.queue_size is {queue_size} but a batch brings {batch_size} keys. "
            f"Make the queue {batch_size} or longer, or the batch smaller."
        )


def validate_method(config: MethodConfig, *, batch_size: int, view_sizes: tuple[int, ...]) -> None:
    """Raise a UserError for settings that cannot work, before any heavy work starts."""
    config.validate()
    if len(view_sizes) != config.num_views:
        raise UserError(
            f"The method takes {config.num_views} views of each image and the recipe has "
            f"{len(view_sizes)}. Give it {config.num_views}: views=method.match_views(views)."
        )
    if batch_size < 2:
        raise UserError(f"batch_size is {batch_size}; batch normalization needs 2 or more.")
    if config.bn != "sync" and (config.bn_group < 2 or batch_size % config.bn_group):
        raise UserError(
            f"batch_size is {batch_size} and method.bn_group {config.bn_group}: groups must hold "
            "2 or more and divide the batch. Choose a batch that is a multiple of bn_group."
        )
    config.validate_batch_size(batch_size)
    config.validate_views(view_sizes)
