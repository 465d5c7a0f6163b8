"""A method to check: its settings, how it is built, and small batches for it."""

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from selfsight import dist
from selfsight.backbones import BackboneConfig
from selfsight.methods import DataInfo, Method, MethodConfig, Moment, Step
from selfsight.nn import Backbone, Teacher
from selfsight.train.skipped_steps import STATISTICS
from selfsight.views import View

SEED, TOTAL_STEPS, STEPS_PER_EPOCH = 3, 100, 10
DATA = DataInfo(num_images=40, num_classes=5)
OF_EVERY_MODULE = frozenset(vars(nn.Module()))  # attributes that torch keeps
# The most that a setting has in a check, by its name: enough to see a mistake, and fast.
SMALL_SETTINGS = {
    "bn_group": 4,
    "dim": 8,
    "freeze_epochs": 0,
    "freeze_steps": 0,
    "hidden_dim": 16,
    "num_keys": 3,
    "num_negatives": 4,
    "num_noise": 16,
    "num_prototypes": 6,
    "num_slices": 16,
    "num_small": 2,
    "num_views": 3,
    "out_dim": 6,
    "predictor_dim": 12,
    "queue_epoch": 0,
    "queue_size": 32,
}


class BrokenRuleError(Exception):
    """The method breaks a rule; the message says which."""


class DoesNotApplyError(Exception):
    """A check does not apply to this method; the message is the reason."""


class SmallBackbone(Backbone):
    """Two layers, with a norm."""

    dim = 12

    def __init__(self, in_channels: int = 3, image_size: int = 16) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(in_channels, 8, 3, stride=2, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(32, self.dim),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Features before any projector."""
        return self.net(x)


SMALL_BACKBONE = f"{__name__}:{SmallBackbone.__qualname__}"
SMALL_CONFIG = BackboneConfig(name=SMALL_BACKBONE, image_size=16)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A method to check, its backbone, and the size of its batches."""

    method: MethodConfig
    backbone: BackboneConfig = SMALL_CONFIG
    batch_size: int = 8  # of all processes

    def build(self, *, seed: int = 0) -> Method:
        """Build the method with the weights of this seed."""
        with seed_globals(seed):
            return self.method.build(self.backbone.build(), DATA)

    @cached_property
    def view_sizes(self) -> list[int]:
        """Width of each view that the method takes."""
        large = View(size=self.backbone.image_size)
        return [view.size for view in self.method.match_views((large, large))]

    def views(self, step: int = 0, *, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        """Return this process's share of a batch of views: related, but not equal."""
        size, sizes = self.backbone.image_size, self.view_sizes
        g = torch.Generator().manual_seed(step)
        shape = (self.batch_size, self.backbone.in_channels, size, size)
        x = torch.randn(shape, generator=g, dtype=dtype)
        noise = [torch.randn(shape, generator=g, dtype=dtype) for _ in sizes]
        return [
            dist.local_rows((x + 0.3 * n)[..., :s, :s]).contiguous()
            for n, s in zip(noise, sizes, strict=True)
        ]

    def moment(self, step: int = 0, *, total_steps: int = TOTAL_STEPS) -> Moment:
        """Return the Moment of this step, with labels that most methods ignore."""
        rows = torch.arange(self.batch_size) + step * self.batch_size
        index = dist.local_rows(rows % DATA.num_images)
        return Moment(
            step=torch.tensor(step),
            index=index,
            seed=SEED,
            total_steps=total_steps,
            steps_per_epoch=STEPS_PER_EPOCH,
            labels=index % DATA.num_classes,
        )

    def forward(
        self, method: Method, step: int = 0, *, at: Moment | None = None, seed: int = 0
    ) -> Step:
        """Call the method with the batch of this step, at another moment if one is given.

        The global random states are set from `seed`: a method that reads one fails only one check.
        """
        with seed_globals(seed):
            return method(self.views(step), self.moment(step) if at is None else at)


@contextlib.contextmanager
def seed_globals(seed: int) -> Iterator[None]:
    """Seed the global random states of torch, numpy and Python; restore them at the end."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)


def reduce_settings(config: MethodConfig) -> MethodConfig:
    """Replace large settings by small ones, so that a check takes a second at most."""
    large: dict[str, Any] = {
        field.name: small
        for field in fields(config)
        if (small := SMALL_SETTINGS.get(field.name)) is not None
        and isinstance(value := getattr(config, field.name), int)
        and value > small
    }
    return replace(config, **large)


def trained_parameters(method: nn.Module) -> list[nn.Parameter]:
    """List the parameters that an optimizer moves."""
    return [p for p in method.parameters() if p.requires_grad]


def step_optimizer(subject: Subject, method: Method) -> Step:
    """Run forward, backward and the optimizer, but not `after_step`."""
    result = subject.forward(method)
    result.loss.backward()
    torch.optim.SGD(trained_parameters(method), lr=0.1).step()
    return result


def copy_state(method: nn.Module, *, statistics: bool = False) -> dict[str, Any]:
    """Copy the state of a method: tensors, and plain attributes of its modules.

    Batch-norm statistics are omitted unless requested. A teacher's `momentum` is always omitted: it
    is only for the log.
    """
    tensors = {**dict(method.named_parameters()), **dict(method.named_buffers())}
    copied: dict[str, Any] = {
        name: tensor.detach().clone()
        for name, tensor in tensors.items()
        if statistics or not name.endswith(STATISTICS)
    }
    for name, module in method.named_modules():
        for key, value in vars(module).items():
            for_the_log = isinstance(module, Teacher) and key == "momentum"
            if key not in OF_EVERY_MODULE and not for_the_log:
                copied[f"{name}.{key}".lstrip(".")] = _copy_value(value)
    return copied


def find_difference(before: dict[str, Any], after: dict[str, Any]) -> str | None:
    """Return the name of something that is not the same to the last bit in both states."""
    for name in {**before, **after}:
        if name not in before or name not in after or not _is_equal(before[name], after[name]):
            return name
    return None


def _copy_value(value: Any) -> Any:
    """Copy a tensor, or the tensors in a container; describe anything else by its text."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copy_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_copy_value(item) for item in value]
    return repr(value)


def _is_equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        # Bits, so that NaN equals NaN.
        return a.dtype == b.dtype and a.shape == b.shape and _bits(a) == _bits(b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_is_equal(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_is_equal, a, b))
    return type(a) is type(b) and not isinstance(a, Tensor) and a == b


def _bits(x: Tensor) -> bytes:
    return x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
