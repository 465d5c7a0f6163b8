"""The limit: the method's networks alone, with nothing round them."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from selfsight.bench.timer import timed
from selfsight.compile_options import COMPILE_OPTIONS
from selfsight.methods import Method
from selfsight.recipe import Recipe
from selfsight.train.step import DTYPES


class Pass(NamedTuple):
    """One way in which a step runs its backbone."""

    rows: int
    side: int
    trained: bool  # with a backward pass


def passes(method: Method, views: list[Tensor], at: Any) -> Counter[Pass]:
    """How often one step runs its backbone, and on what: seen at its first convolution."""
    seen: Counter[Pass] = Counter()

    def look(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        x = inputs[0]
        seen[Pass(len(x), x.shape[-1], torch.is_grad_enabled())] += 1

    first = [
        next(m for m in net.modules() if isinstance(m, nn.Conv2d)) for net in _networks(method)
    ]
    with contextlib.ExitStack() as stack:
        for conv in first:
            stack.callback(conv.register_forward_pre_hook(look).remove)
        method(views, at)
    return seen


def alone(
    recipe: Recipe, kinds: Counter[Pass], device: torch.device, seconds: float
) -> dict[Pass, float]:
    """Milliseconds of each kind of pass through a bare backbone with torch's own batch norm."""
    net = recipe.backbone.build().to(device).to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    call = torch.compile(net, **COMPILE_OPTIONS) if recipe.compile else net
    return {
        kind: timed(_pass(recipe, net, call, kind, device), device, seconds=seconds)
        for kind in kinds
    }


def _pass(recipe: Recipe, net: nn.Module, call: Any, kind: Pass, device: torch.device) -> Any:
    dtype = DTYPES[recipe.precision]
    x = torch.randn(
        kind.rows, recipe.data.channels, kind.side, kind.side, device=device, dtype=dtype
    )
    x = x.contiguous(memory_format=torch.channels_last)

    def work() -> None:
        with (
            torch.set_grad_enabled(kind.trained),
            torch.autocast(device.type, dtype, enabled=dtype != torch.float32),
        ):
            h = call(x)
        if kind.trained:
            net.zero_grad(set_to_none=True)
            h.float().square().mean().backward()

    return work


def _networks(method: Method) -> Iterator[nn.Module]:
    yield method.student.backbone
    teacher = getattr(method, "teacher", None)
    if teacher is not None:
        yield teacher.net.backbone
