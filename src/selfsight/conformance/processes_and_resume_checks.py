"""Checks of training: repeatable, resumed to the same bits, the same on two processes."""

import copy
import io
from typing import Any, NamedTuple

import torch
from torch import Tensor

from selfsight import dist
from selfsight.conformance.method_under_test import (
    BrokenRuleError,
    Subject,
    copy_state,
    find_difference,
    trained_parameters,
)
from selfsight.conformance.start_processes import ProcessGroup
from selfsight.methods import Method
from selfsight.nn.batch_norm import average_running_statistics

STEPS = 3


class Trace(NamedTuple):
    """What a few steps computed, averaged over processes, and the state after them."""

    losses: list[Tensor]
    gradients: list[list[Tensor]]  # of each step, for each trained parameter
    state: dict[str, Tensor]


def train(subject: Subject, steps: int = STEPS) -> Trace:
    """Train in float64 on this process's share of each batch."""
    method = subject.build().double()
    optimizer = build_optimizer(method)
    losses, gradients = [], []
    for step in range(steps):
        loss, grads = train_step(subject, method, optimizer, step, dtype=torch.float64)
        losses.append(loss)
        gradients.append(grads)
    return Trace(losses, gradients, {k: v.clone() for k, v in method.state_dict().items()})


def build_optimizer(method: Method) -> torch.optim.SGD:
    """Build an optimizer that has state."""
    return torch.optim.SGD(trained_parameters(method), lr=0.1, momentum=0.9)


def train_step(
    subject: Subject,
    method: Method,
    optimizer: torch.optim.SGD,
    step: int,
    *,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, list[Tensor]]:
    """Run one whole step; return loss and gradients, averaged over processes."""
    parameters = trained_parameters(method)
    optimizer.zero_grad()
    result = method(subject.views(step, dtype=dtype), subject.moment(step))
    result.loss.backward()
    for p in parameters:
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    dist.average_gradients(parameters)
    gradients = [p.grad.clone() for p in parameters if p.grad is not None]
    optimizer.step()
    method.after_step(subject.moment(step), result)
    average_running_statistics(method)
    return dist.mean(result.loss.detach()), gradients


def compare_traces(one: Trace, several: Trace) -> None:
    """Raise a BrokenRuleError unless two traces are the same up to the rounding of float64."""
    for part, rtol in (("losses", 1e-9), ("gradients", 1e-7), ("state", 1e-7)):
        try:
            torch.testing.assert_close(
                getattr(several, part), getattr(one, part), rtol=rtol, atol=1e-9
            )
        except AssertionError as error:
            lines = [line.strip() for line in str(error).splitlines() if "ifference" in line]
            raise BrokenRuleError(
                f"The {part} of two processes are not those of one with the whole batch "
                f"({'; '.join(lines[:2])}). Gather with selfsight.dist what a loss, a queue or a "
                "norm needs of the whole batch."
            ) from error


def check_two_processes(subject: Subject) -> None:
    """Two processes with half a batch each equal one, in float64: loss, gradient and state."""
    with ProcessGroup(2) as group:
        for several in group(train, subject):
            compare_traces(train(subject), several)


def check_repeatable(subject: Subject) -> None:
    """Weights and loss are functions of the seed: no global random state is read in a step."""
    first, *others = (subject.build() for _ in range(3))
    for other in others:
        if (name := find_difference(copy_state(first), copy_state(other))) is not None:
            raise BrokenRuleError(f"{name} of two methods built from one seed differs.")
    losses = [subject.forward(net, seed=k).loss for k, net in enumerate((first, *others))]
    if not all(torch.equal(losses[0], loss) for loss in losses):
        raise BrokenRuleError(
            "The loss of the same step is not the same twice. Take random numbers from the Moment "
            "(at.uniform, at.normal, at.shared_normal, at.permutation, at.choices) alone."
        )


def check_resume(subject: Subject) -> None:
    """Training that stops and resumes from a checkpoint ends in the same bits."""
    whole = subject.build()
    optimizer = build_optimizer(whole)
    stop, end = 2, 3
    for step in range(stop):
        train_step(subject, whole, optimizer, step)
    saved = _through_a_file({"method": whole.state_dict(), "optimizer": optimizer.state_dict()})
    for step in range(stop, end):
        train_step(subject, whole, optimizer, step)

    resumed = subject.build(seed=1)  # another seed shows what the checkpoint lacks
    resumed.load_state_dict(saved["method"])
    optimizer = build_optimizer(resumed)
    optimizer.load_state_dict(saved["optimizer"])
    for step in range(stop, end):
        train_step(subject, resumed, optimizer, step)
    before, after = (copy_state(net, statistics=True) for net in (whole, resumed))
    if (name := find_difference(before, after)) is not None:
        raise BrokenRuleError(
            f"After a resume {name} is not the same. The state of a method must be in parameters "
            "and persistent buffers."
        )


def check_state_dict(subject: Subject) -> None:
    """A state dict passes through a file and gives the same state and loss to another method."""
    method = subject.build()
    train_step(subject, method, build_optimizer(method), 0)
    saved = _through_a_file(method.state_dict())
    other = subject.build(seed=1)
    other.load_state_dict(saved)
    if (name := find_difference(method.state_dict(), other.state_dict())) is not None:
        raise BrokenRuleError(f"{name} is not the same after it was saved and loaded.")
    if not torch.equal(subject.forward(method, 1).loss, subject.forward(other, 1).loss):
        raise BrokenRuleError("The loss depends on something that is not in the state dict.")


def check_precision(subject: Subject) -> None:
    """Under autocast to bf16 the loss is float32, finite, and close to that of float32."""
    exact = subject.forward(subject.build()).loss.detach()
    with torch.autocast("cpu", torch.bfloat16):
        rough = subject.forward(subject.build()).loss.detach()
    if rough.dtype != torch.float32:
        raise BrokenRuleError(
            f"Under autocast the loss is {rough.dtype}. Compute losses in at least float32 "
            "(selfsight.losses.float32_losses)."
        )
    if not bool((rough - exact).abs() <= 0.05 + 0.05 * exact.abs()):
        raise BrokenRuleError(f"The loss is {exact:.6g} in float32 and {rough:.6g} with bf16.")


def trace_graphs(subject: Subject) -> list[int]:
    """Trace forward as one graph, for four steps; return the number of graphs after each.

    Raise an error at a graph break, and a BrokenRuleError where the loss is not the same.
    """
    method = subject.build()
    other = copy.deepcopy(method)
    count = 0

    def compile_graph(graph: Any, _: Any) -> Any:
        nonlocal count
        count += 1
        return graph.forward

    torch._dynamo.reset()
    traced = torch.compile(method, fullgraph=True, backend=compile_graph)
    counts = []
    for step in range(4):
        views, at = subject.views(step), subject.moment(step)
        found, expected = traced(views, at).loss.detach(), other(views, at).loss.detach()
        if not torch.allclose(found, expected, rtol=1.3e-6, atol=1e-5):
            raise BrokenRuleError(f"The loss of step {step} is {found}, and traced {expected}.")
        counts.append(count)
    return counts


def check_compiled(subject: Subject) -> None:
    """Forward is traced as one graph, which serves every step and gives the same loss."""
    counts = trace_graphs(subject)
    if counts != [counts[0]] * len(counts):
        raise BrokenRuleError(
            f"A new step makes a new graph: {counts} after each. Keep the step a tensor."
        )


def _through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    """Save and load, as checkpoints are: without running code."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)
