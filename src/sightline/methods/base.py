"""The one contract every method keeps."""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from sightline import random
from sightline.errors import UserError
from sightline.nn import Backbone, Encoder
from sightline.nn.norm import convert

Views = list[Float[Tensor, "n c _ _"]]


class Step(NamedTuple):
    """What one forward pass hands to the training loop."""

    loss: Float[Tensor, ""]
    features: Float[Tensor, "n d"]  # of the first view, before the projector; probes read it
    logs: dict[str, Tensor] = {}  # noqa: RUF012


class DataFacts(NamedTuple):
    """What a method may know of the data before it sees any."""

    num_pictures: int = 0
    num_classes: int = 0


UNKNOWN = DataFacts()


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Where training stands, and numbers that depend on that alone.

    Draws are keyed by seed, step and picture: equal on any number of processes.
    """

    step: Int64[Tensor, ""]  # a tensor on the device, so that a new step compiles nothing anew
    index: Int64[Tensor, " n"]  # which pictures these are
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

    def uniform(self, name: str, count: int) -> Float64[Tensor, "n count"]:
        """Numbers in [0, 1), a row for each picture."""
        return random.uniform(random.key(self.seed, name), self.index, count, self.step)

    def normal(self, name: str, count: int) -> Float64[Tensor, "n count"]:
        """Standard normal numbers, a row for each picture."""
        return random.normal(random.key(self.seed, name), self.index, count, self.step)

    def permutation(self, name: str, n: int) -> Int64[Tensor, " n"]:
        """One order of n things, the same on every process."""
        return random.permutation(random.key(self.seed, name), n, self.step, self.index.device)


class Method(nn.Module):
    """Views in, loss out.

    The loop calls forward, backward, optimizer.step and after_step, in that order.
    """

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

    bn: Literal["sync", "split", "shuffle"] = "sync"
    """Batch norm over the whole global batch, or over groups of bn_group pictures; `shuffle`
    also permutes the pictures that the teacher sees."""
    bn_group: int = 32

    def build(self, backbone: Backbone, data: DataFacts = UNKNOWN) -> Method:
        """The method with fresh weights around this backbone."""
        method = self.make(backbone, data)
        convert(method, None if self.bn == "sync" else self.bn_group)
        return method

    def make(self, backbone: Backbone, data: DataFacts) -> Method:
        """The method before its norm layers are told their groups."""
        raise NotImplementedError

    def refuse(self, *, batch_size: int) -> None:
        """Raise a UserError for settings that cannot work with this batch."""

    @property
    def num_views(self) -> int:
        """How many views of each picture `forward` takes."""
        return 2

    def chance_loss(self, batch_size: int) -> float | None:
        """What guessing would give, where the loss is a choice among candidates."""
        return None


def check(config: MethodConfig, *, batch_size: int, num_views: int) -> None:
    """Refuse settings that cannot work, before any heavy work starts."""
    if num_views != config.num_views:
        raise UserError(
            f"The method takes {config.num_views} views of each picture and the recipe has "
            f"{num_views}. Give it {config.num_views}."
        )
    if batch_size < 2:
        raise UserError(f"batch_size is {batch_size}; batch normalisation needs 2 or more.")
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
