"""The one contract every method keeps."""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from selfsight import dist, rng
from selfsight.errors import UserError
from selfsight.nn import Backbone, Encoder, Teacher
from selfsight.nn.batch_norm import convert, without_batch

Views = list[Float[Tensor, "n c _ _"]]


class Step(NamedTuple):
    """What one forward pass hands to the training loop."""

    loss: Float[Tensor, ""]
    features: Float[Tensor, "n d"]  # of the first view, before the projector; probes read it
    logs: dict[str, Tensor] = {}  # noqa: RUF012


class DataFacts(NamedTuple):
    """What a method may know of the data before it sees any."""

    num_images: int = 0
    num_classes: int = 0


UNKNOWN = DataFacts()


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Where training stands, and numbers that depend on that alone.

    Draws are keyed by seed, step and image: equal on any number of processes.
    """

    step: Int64[Tensor, ""]  # a tensor on the device, so that a new step compiles nothing anew
    index: Int64[Tensor, " n"]  # which images these are
    seed: int
    total_steps: int
    steps_per_epoch: int
    labels: Int64[Tensor, " n"] | None = None  # only for a method that `needs_labels`

    @property
    def progress(self) -> Float64[Tensor, ""]:
        """Share of training done before this step."""
        return self.step.double() / self.total_steps

    @property
    def next_progress(self) -> Float64[Tensor, ""]:
        """Share of training done after this step."""
        return (self.step + 1).double() / self.total_steps

    @property
    def epochs_begun(self) -> Float64[Tensor, ""]:
        """Share of the epochs that have begun, this one included."""
        epoch = self.step // self.steps_per_epoch + 1
        return epoch.double() * self.steps_per_epoch / self.total_steps

    def uniform(self, name: str, count: int) -> Float64[Tensor, "n count"]:
        """Numbers in [0, 1), a row for each image."""
        return rng.uniform(rng.key(self.seed, name), self.index, count, self.step)

    def normal(self, name: str, count: int) -> Float64[Tensor, "n count"]:
        """Standard normal numbers, a row for each image."""
        return rng.normal(rng.key(self.seed, name), self.index, count, self.step)

    def permutation(self, name: str, n: int) -> Int64[Tensor, " n"]:
        """One order of n things, the same on every process."""
        return rng.permutation(rng.key(self.seed, name), n, self.step, self.index.device)

    def choices(self, name: str, count: int, among: int) -> Int64[Tensor, "n count"]:
        """For each image `count` of so many things, none of them twice."""
        return self.uniform(name, among).sort(dim=1, stable=True).indices[:, :count]


class Method(nn.Module):
    """Views in, loss out.

    The loop calls forward, backward, optimizer.step and after_step, in that order.
    """

    features_of: ClassVar[Literal["student", "teacher"]] = "student"  # whose a Step's features are

    student: Encoder

    def forward(self, views: Views, at: Moment) -> Step:
        """One paper's algorithm, up to and including the loss."""
        raise NotImplementedError

    def after_step(self, at: Moment) -> None:
        """Move what moves after the optimizer has: once per optimizer step."""


@dataclass(frozen=True, kw_only=True)
class MethodConfig:
    """The settings of one method."""

    shuffles: ClassVar[bool] = False  # has keys whose batch norm can be shuffled
    needs_labels: ClassVar[bool] = False  # only the supervised baseline
    row_each: ClassVar[bool] = False  # keeps `dim` numbers for each image of the data
    info_nce: ClassVar[bool] = False  # its loss is InfoNCE: the mutual-information bound applies

    bn: Literal["sync", "split", "shuffle"] = "sync"
    """Batch norm over the whole global batch, or over groups of bn_group images; `shuffle`
    also permutes the images that the teacher sees."""
    bn_group: int = 32
    norm: Literal["bn", "ln", "ws"] = "bn"
    """Of backbone and heads: batch norm, layer norm, or weight-standardized convolutions with
    group norm."""

    def build(self, backbone: Backbone, data: DataFacts = UNKNOWN) -> Method:
        """The method with fresh weights around this backbone."""
        method = self.make(backbone, data)
        convert(method, None if self.bn == "sync" else self.bn_group)
        if self.bn != "sync" and isinstance(teacher := getattr(method, "teacher", None), Teacher):
            convert(teacher, self.bn_group * teacher.keys_each)
        if self.norm != "bn":
            without_batch(method, self.norm)
        return method

    def make(self, backbone: Backbone, data: DataFacts) -> Method:
        """The method before its norm layers are told their groups."""
        raise NotImplementedError

    def refuse(self, *, batch_size: int) -> None:
        """Raise a UserError for settings that cannot work with this batch."""

    def refuse_views(self, sizes: tuple[int, ...]) -> None:
        """Raise a UserError for views of these widths that the method cannot use."""

    def order(
        self, at: Moment, x: Float[Tensor, "n c _ _"], keys_each: int = 1
    ) -> Int64[Tensor, " g"] | None:
        """In which order the teacher encodes the rows of all processes; None: as they come."""
        if self.bn == "sync" or (self.bn == "split" and keys_each == 1):
            return None
        # As one process would hold them, view after view, whatever the number of processes.
        world = dist.world_size()
        rows = torch.arange(world * len(x), device=x.device).view(world, keys_each, -1)
        rows = rows.transpose(0, 1).flatten()
        return rows[at.permutation("shuffle", len(rows))] if self.bn == "shuffle" else rows

    @property
    def num_views(self) -> int:
        """How many views of each image `forward` takes."""
        return 2

    @property
    def info_nce_scale(self) -> float:
        """How many times InfoNCE the loss is, where `info_nce` is true."""
        return 1.0

    def chance_loss(self, batch_size: int) -> float | None:
        """What guessing would give, where the loss is a choice among candidates."""
        return None


def positive(**settings: int | float | None) -> None:
    """Refuse a method's settings that are given and not above 0."""
    for name, value in settings.items():
        if value is not None and not value > 0:
            raise UserError(f"method.{name} is {value}; it must be above 0.")


def share(**settings: int | float) -> None:
    """Refuse a method's settings that are not from 0 to below 1."""
    for name, value in settings.items():
        if not 0 <= value < 1:
            raise UserError(f"method.{name} is {value}; it must be from 0 to below 1.")


def refuse_short(queue_size: int, batch_size: int) -> None:
    """Refuse a queue that does not hold one batch."""
    if queue_size < batch_size:
        raise UserError(
            f"method.queue_size is {queue_size} but a batch brings {batch_size} keys. "
            f"Make the queue {batch_size} or longer, or the batch smaller."
        )


def check(config: MethodConfig, *, batch_size: int, view_sizes: tuple[int, ...]) -> None:
    """Refuse settings that cannot work, before any heavy work starts."""
    num_views = len(view_sizes)
    if num_views != config.num_views:
        raise UserError(
            f"The method takes {config.num_views} views of each image and the recipe has "
            f"{num_views}. Give it {config.num_views}."
        )
    if batch_size < 2:
        raise UserError(f"batch_size is {batch_size}; batch normalization needs 2 or more.")
    if config.bn != "sync" and (config.bn_group < 2 or batch_size % config.bn_group):
        raise UserError(
            f"batch_size is {batch_size} and method.bn_group {config.bn_group}: groups must hold "
            "2 or more and divide the batch. Choose a batch that is a multiple of bn_group."
        )
    if config.bn == "shuffle" and not config.shuffles:
        raise UserError(
            'method.bn is "shuffle", but this method has no keys to shuffle. Use "sync" or "split".'
        )
    config.refuse(batch_size=batch_size)
    config.refuse_views(view_sizes)
