"""A watched step names the module that an injected fault was put into."""

import math

import pytest
import torch
from torch import nn

from selfsight.methods import METHODS
from selfsight.train.trace_non_finite import FiniteWatch
from tests.methods.small import make, moment, views

QUICK = ("moco", "swav")
EVERY = [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
    for name in sorted(METHODS)
]


class Overflow(torch.autograd.Function):
    """A function whose output is finite and whose gradient is not."""

    @staticmethod
    def forward(ctx, x):
        """Return the input."""
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        """Divide by zero."""
        return grad * 1e30 * 1e30


def watched_step(method, given):
    with FiniteWatch(method) as watch:
        result = method(given, moment())
        result.loss.backward()
    return watch.find(given, result.loss, len(given[0]))


def named(method, kind):
    """Name of the last module of a class in the student that a step calls."""
    found = {n: m for n, m in method.named_modules() if isinstance(m, kind) and n[:8] == "student."}
    called = set()
    hooks = [m.register_forward_hook(lambda *_, n=n: called.add(n)) for n, m in found.items()]
    method(views(method), moment())
    for hook in hooks:
        hook.remove()
    return [name for name in found if name in called][-1]


@pytest.mark.parametrize("name", EVERY)
def test_a_weight_that_overflows_is_found_in_every_method(name):
    # Without batch norm, what DINO's last layer gets is so small that nothing overflows.
    method = make(name, **({"head_norm": True} if name == "dino" else {}))
    assert watched_step(method, views(method)) is None
    place = named(method, nn.Linear)
    with torch.no_grad():
        method.get_submodule(place).weight.fill_(3e38)
    fault = watched_step(method, views(method))
    assert (fault.phase, fault.module, fault.kind) == ("forward", place, "Linear")
    assert fault.operation in ("addmm", "mm")


@pytest.mark.parametrize("name", EVERY)
def test_a_gradient_that_overflows_is_found_in_every_method(name):
    method = make(name)
    place = named(method, nn.Linear)
    layer = method.get_submodule(place)
    linear = layer.forward
    layer.forward = lambda x: Overflow.apply(linear(x))
    fault = watched_step(method, views(method))
    assert (fault.phase, fault.module, fault.operation) == ("backward", place, "mul")
    assert f"{place}.weight" in fault.parameters


def test_an_image_that_alone_is_not_finite_is_known_by_its_row():
    method = make("simclr")
    given = views(method)
    given[0][5] = 1e38
    with torch.no_grad():  # before the first batch norm, which would mix the images
        method.student.backbone.net[0].weight.fill_(1.0)
    fault = watched_step(method, given)
    assert (fault.phase, fault.module) == ("forward", "student.backbone.net.0")
    assert fault.rows == (5,)
    given[1][2, 0, 0, 0] = math.nan
    fault = watched_step(method, given)
    assert (fault.phase, fault.rows) == ("views", (2,))


def test_a_loss_that_divides_by_zero_is_named_with_its_line(monkeypatch):
    from selfsight.methods import simclr

    method = make("simclr")
    loss = simclr.nt_xent
    monkeypatch.setattr(simclr, "nt_xent", lambda *a, **k: loss(*a, **k | {"temperature": 0.0}))
    fault = watched_step(method, views(method))
    assert (fault.phase, fault.module) == ("loss", None)
    assert fault.operation == "div"
    assert fault.place.startswith("selfsight/losses/")


def test_fp16_overflow_is_found_where_the_product_leaves_its_range():
    method = make("simclr")
    place = named(method, nn.Linear)
    with torch.no_grad():
        method.get_submodule(place).weight.mul_(1e5)
    given = views(method)
    assert watched_step(method, given) is None
    with FiniteWatch(method) as watch, torch.autocast("cpu", torch.float16):
        result = method(given, moment())
    fault = watch.find(given, result.loss, len(given[0]))
    assert (fault.phase, fault.module) == ("forward", place)


def test_hooks_and_anomaly_mode_are_gone_after_the_step():
    method = make("byol")
    watched_step(method, views(method))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in method.modules())
    assert not torch.is_anomaly_enabled()
