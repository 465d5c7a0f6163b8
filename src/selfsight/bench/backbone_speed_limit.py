"""Measure the upper limit of speed: the backbone's passes of a step, without anything else."""

import contextlib
from collections import Counter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from selfsight.bench.timer import median_ms
from selfsight.compile_options import COMPILE_OPTIONS
from selfsight.methods import Method
from selfsight.nn import encoders
from selfsight.recipe import Recipe
from selfsight.train.step import DTYPES, autocast


class BackbonePass(NamedTuple):
    """Shape of a forward pass through the backbone, and whether a backward pass follows."""

    batch_size: int
    image_size: int
    backward: bool


PassTimes = dict[tuple[Any, BackbonePass], float]  # milliseconds, by backbone and pass


def count_passes(method: Method, views: list[Tensor], at: Any) -> Counter[BackbonePass]:
    """Count the passes of one step through its backbone, by a hook on the first convolution."""
    counts: Counter[BackbonePass] = Counter()

    def record(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        x = inputs[0]
        counts[BackbonePass(len(x), x.shape[-1], torch.is_grad_enabled())] += 1

    with contextlib.ExitStack() as stack:
        for encoder in encoders(method):
            conv = next(m for m in encoder.backbone.modules() if isinstance(m, nn.Conv2d))
            stack.callback(conv.register_forward_pre_hook(record).remove)
        method(views, at)
    return counts


def time_passes(
    recipe: Recipe,
    passes: Counter[BackbonePass],
    device: torch.device,
    seconds: float,
    times: PassTimes | None = None,
) -> dict[BackbonePass, float]:
    """Return the milliseconds of each pass through a bare backbone with torch's batch norm.

    `times` holds what was measured before, and gets what is measured now.
    """
    times = {} if times is None else times
    network = (recipe.backbone, recipe.data.channels, recipe.precision, recipe.compile)
    new = [one for one in passes if (network, one) not in times]
    if new:
        net = recipe.backbone.build().to(device).to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
        call = torch.compile(net, **COMPILE_OPTIONS) if recipe.compile else net
        for one in new:
            function = _pass_function(recipe, net, call, one, device)
            times[network, one] = median_ms(function, device, seconds=seconds)
    return {one: times[network, one] for one in passes}


def time_forward(
    recipe: Recipe, batch_size: int, image_size: int, device: torch.device, seconds: float
) -> float:
    """Return the milliseconds of a forward pass of a bare backbone in evaluation mode."""
    net = recipe.backbone.build().to(device).to(memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
    call = torch.compile(net, **COMPILE_OPTIONS) if recipe.compile else net
    one = BackbonePass(batch_size, image_size, False)
    return median_ms(_pass_function(recipe, net, call, one, device), device, seconds=seconds)


def _pass_function(
    recipe: Recipe, net: nn.Module, call: Any, one: BackbonePass, device: torch.device
) -> Any:
    x = torch.randn(
        one.batch_size,
        recipe.data.channels,
        one.image_size,
        one.image_size,
        device=device,
        dtype=DTYPES[recipe.precision],
    )
    x = x.contiguous(memory_format=torch.channels_last)

    def run_pass() -> None:
        with torch.set_grad_enabled(one.backward), autocast(recipe, device):
            h = call(x)
        if one.backward:
            net.zero_grad(set_to_none=True)
            h.float().square().mean().backward()

    return run_pass
