"""Checks of the contract: forward computes, after_step changes state, a skipped step does not."""

import copy
from typing import Any

import torch
from torch import Tensor

from selfsight.conformance.method_under_test import (
    BrokenRuleError,
    DoesNotApplyError,
    Subject,
    copy_state,
    find_difference,
    step_optimizer,
)
from selfsight.methods import Method, Step
from selfsight.nn import Encoder


def check_builds(subject: Subject) -> None:
    """It builds, and a forward pass gives a finite loss and features of the backbone's width."""
    method = subject.build()
    if not isinstance(method, Method) or not isinstance(getattr(method, "student", None), Encoder):
        raise BrokenRuleError(
            f"`create` returned a {type(method).__name__}; it must return a Method whose `student` "
            "is an Encoder."
        )
    step = subject.forward(method)
    if not isinstance(step, Step):
        raise BrokenRuleError(f"forward returned a {type(step).__name__}, not a Step.")
    if step.loss.shape != () or not step.loss.isfinite():
        raise BrokenRuleError(f"The loss is {step.loss}; it must be one finite number.")
    expected = (len(subject.views()[0]), method.student.backbone.dim)
    if step.features.shape != expected:
        raise BrokenRuleError(
            f"Step.features has shape {tuple(step.features.shape)}; expected {expected}: the "
            "backbone's output for the first view."
        )


def check_gradients(subject: Subject) -> None:
    """The gradient is finite and reaches every trained parameter, and none that a step freezes."""
    method = subject.build()
    step = subject.forward(method)
    step.loss.backward()
    parameters = dict(method.named_parameters())
    if unknown := [name for name in step.frozen if name not in parameters]:
        raise BrokenRuleError(f"Step.frozen names {unknown[0]}, which is not a parameter.")
    for name, p in parameters.items():
        if not p.requires_grad:
            continue
        if name in step.frozen and bool(step.frozen[name]):
            if p.grad is not None and bool(p.grad.any()):
                raise BrokenRuleError(f"Step.frozen names {name}, but it gets a gradient.")
            continue
        if p.grad is None:
            raise BrokenRuleError(
                f"No gradient reaches {name}. Freeze it (requires_grad_(False)) or use it in the "
                "loss: several processes cannot train a parameter that is not used."
            )
        if not bool(p.grad.any()):
            raise BrokenRuleError(
                f"The gradient of {name} is zero: the loss does not depend on it. Freeze it "
                "(requires_grad_(False)) or remove it."
            )
        if not bool(p.grad.isfinite().all()):
            raise BrokenRuleError(f"The gradient of {name} is not finite.")


def check_forward_keeps_state(subject: Subject) -> None:
    """Two forward and backward passes change nothing but batch-norm statistics."""
    method = subject.build()
    before = copy_state(method)
    for step in range(2):
        subject.forward(method, step).loss.backward()
    if (name := find_difference(before, copy_state(method))) is not None:
        raise BrokenRuleError(
            f"forward changed {name}. Return what changes it in Step.update, and write it in "
            "after_step."
        )


def check_evaluation_mode(subject: Subject) -> None:
    """In evaluation mode forward changes nothing, needs no gradients, and gives the features."""
    method = subject.build().eval()
    before = copy_state(method, statistics=True)
    loss, features, *_ = subject.forward(method)
    with torch.no_grad():
        without = subject.forward(method).loss
    if (name := find_difference(before, copy_state(method, statistics=True))) is not None:
        raise BrokenRuleError(f"In evaluation mode forward changed {name}.")
    if not torch.equal(loss.detach(), without):
        raise BrokenRuleError(
            f"In evaluation mode the loss is {loss.item():.6g} with gradients and "
            f"{without.item():.6g} without."
        )
    encoder = _teacher(method).net if method.features_of == "teacher" else method.student
    if not torch.allclose(features, encoder.backbone(subject.views()[0]), rtol=1e-4, atol=1e-5):
        raise BrokenRuleError(
            "Step.features is not what the backbone gives for the first view alone."
        )


def check_after_step_reads_the_step(subject: Subject) -> None:
    """What `after_step` needs is detached and in Step.update; forward hides nothing on the way."""
    method = subject.build()
    clone = copy.deepcopy(method)  # sees no forward pass
    result = subject.forward(method)
    for key, tensor in result.update.items():
        if tensor.requires_grad:
            raise BrokenRuleError(
                f'Step.update["{key}"] carries a graph. Detach it, so that no later step can '
                "send a gradient through it."
            )
    clone.load_state_dict(method.state_dict())  # batch-norm statistics
    method.after_step(subject.moment(), result)
    clone.after_step(subject.moment(), result)
    if (name := find_difference(copy_state(method), copy_state(clone))) is not None:
        raise BrokenRuleError(
            f"after_step writes another {name} to a copy that did not run forward itself. Pass "
            "what it needs in Step.update."
        )


def check_skipped_step(subject: Subject) -> None:
    """A step that is skipped, for a gradient that is not finite, changes batch norm alone."""
    method = subject.build()
    method.after_step(subject.moment(), step_optimizer(subject, method))
    before = copy_state(method)
    result = subject.forward(method, 1)
    method.after_step(subject.moment(1), result._replace(skipped=torch.tensor(1.0)))
    if (name := find_difference(before, copy_state(method))) is not None:
        raise BrokenRuleError(
            f"A skipped step changed {name}. Mask every write of after_step with step.skipped."
        )


def check_mask_of_zero(subject: Subject) -> None:
    """A step that is not skipped is the same with a mask of 0 and without a mask."""
    method = subject.build()
    other = copy.deepcopy(method)
    masks: tuple[tuple[Method, Tensor | None], ...] = ((method, None), (other, torch.tensor(0.0)))
    for net, skipped in masks:
        result = step_optimizer(subject, net)
        net.after_step(subject.moment(), result._replace(skipped=skipped))
    if (name := find_difference(copy_state(method), copy_state(other))) is not None:
        raise BrokenRuleError(f"{name} differs between skipped=None and a mask of 0.")


def check_teacher_follows(subject: Subject) -> None:
    """The teacher moves in `after_step`."""
    method = subject.build()
    if not hasattr(method, "teacher"):
        raise DoesNotApplyError("There is no attribute `teacher`.")
    before = copy.deepcopy(list(_teacher(method).parameters()))
    method.after_step(subject.moment(), step_optimizer(subject, method))
    if all(map(torch.equal, before, _teacher(method).parameters())):
        raise BrokenRuleError("after_step does not move the teacher.")


def _teacher(method: Method) -> Any:
    return method.teacher
