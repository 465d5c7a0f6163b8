"""Steps of a method compiled as on CUDA, but on a CPU: traced, then run by eager kernels."""

import contextlib
import copy
from collections.abc import Iterator
from typing import NamedTuple

import jaxtyping
import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from selfsight.compile_options import COMPILE_OPTIONS
from selfsight.conformance import Subject
from selfsight.losses import float32_losses
from selfsight.methods import Method
from selfsight.train.compile import compile_networks

NUM_STEPS = 3


class Traced(NamedTuple):
    """What was compiled in some steps."""

    num_losses: int
    num_graphs: list[int]  # of networks and losses so far, after each step
    graph_breaks: dict[str, int]  # how often each reason ended a graph early


@contextlib.contextmanager
def compiled_as_on_cuda(backend: str = "aot_eager") -> Iterator[None]:
    """Compile losses and networks with the options of CUDA, except for the backend.

    Both passes are traced; torch's eager kernels run the graphs, so no code is generated.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # its checks cannot be traced
        patch.setitem(COMPILE_OPTIONS, "backend", backend)
        patch.delitem(COMPILE_OPTIONS, "options")  # of the backend that is replaced
        patch.setattr(float32_losses, "is_compiled_on", lambda device: True)
        _forget_compiled()
        try:
            yield
        finally:
            _forget_compiled()


def _forget_compiled() -> None:
    float32_losses.compile_loss.cache_clear()
    torch._dynamo.reset()
    counters.clear()


def trace_steps(
    subject: Subject,
    *,
    blocks: bool = False,
    autocast: torch.dtype | None = None,
    backend: str = "aot_eager",
) -> Traced:
    """Train for some steps; losses and gradients must be those of an uncompiled copy."""
    plain = subject.build()
    method = copy.deepcopy(plain)
    tolerance = 1e-4 if autocast is None else 0.05
    num_graphs = []
    with compiled_as_on_cuda(backend):
        compile_networks(method, blocks=blocks)
        for step in range(NUM_STEPS):
            loss, grads = _train_step(subject, method, step, autocast)
            with torch.compiler.set_stance("force_eager"):
                plain_loss, plain_grads = _train_step(subject, plain, step, autocast)
            torch.testing.assert_close(loss, plain_loss, rtol=tolerance, atol=tolerance)
            # Some gradients are 0 but for rounding, as that of a bias before a norm.
            largest = max(float(grad.abs().max()) for grad in plain_grads.values())
            torch.testing.assert_close(grads, plain_grads, rtol=0, atol=tolerance * largest)
            num_graphs.append(counters["stats"]["unique_graphs"])
        num_losses = float32_losses.compile_loss.cache_info().currsize
        return Traced(num_losses, num_graphs, dict(counters["graph_break"]))


def _train_step(
    subject: Subject, method: Method, step: int, autocast: torch.dtype | None
) -> tuple[Tensor, dict[str, Tensor]]:
    with torch.autocast("cpu", autocast, enabled=autocast is not None):
        result = subject.forward(method, step)
    method.zero_grad()
    result.loss.backward()
    method.after_step(subject.moment(step), result)
    grads = {name: p.grad for name, p in method.named_parameters() if p.grad is not None}
    return result.loss.detach(), grads
