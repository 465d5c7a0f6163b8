"""Checks of leakage: into the teacher, from labels, from the order of images, from positives."""

import math
from dataclasses import fields, replace
from typing import Any

import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

from selfsight.conformance.method_under_test import (
    BrokenRuleError,
    DoesNotApplyError,
    Subject,
    trained_parameters,
)
from selfsight.methods import Moment

# Two images that share a neighbor in NNCLR keep their loss up: in a long queue few do.
EASY = {"temperature": 0.02, "queue_size": 2048}
LEARNING_STEPS = 50  # on one batch; most methods need fewer than 30
STARTS = 16  # some initial weights learn what others cannot


def check_teacher_gradient(subject: Subject) -> None:
    """No gradient flows into what is not trained, even if it could take one."""
    method = subject.build()
    frozen = {name: p for name, p in method.named_parameters() if not p.requires_grad}
    if not frozen:
        raise DoesNotApplyError("All parameters are trained.")
    method.requires_grad_(True)
    subject.forward(method).loss.backward()
    for name, p in frozen.items():
        if p.grad is not None and bool(p.grad.any()):
            raise BrokenRuleError(
                f"The loss has a gradient with respect to {name}, which is not trained. Compute "
                "keys and targets under torch.no_grad()."
            )


def check_positives(subject: Subject) -> None:
    """InfoNCE of one batch can be learned below log 2: no positive is among its negatives."""
    config: Any = subject.method
    if not config.info_nce:
        raise DoesNotApplyError("The settings do not say that the loss is InfoNCE (`info_nce`).")
    names = {field.name for field in fields(config) if getattr(config, field.name)}
    config = replace(config, **{name: EASY[name] for name in EASY.keys() & names})
    subject = replace(subject, method=config)
    lowest = math.inf
    for seed in range(STARTS):
        method = subject.build(seed=seed)
        optimizer = torch.optim.Adam(trained_parameters(method), lr=0.01)
        for _ in range(LEARNING_STEPS):
            # Neither after_step nor another batch: keys and queue stay, and the queries learn them.
            loss = subject.forward(method).loss
            lowest = min(lowest, loss.item() / config.info_nce_scale)
            if lowest < math.log(2) / 2:
                return
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    raise BrokenRuleError(
        f"In {STARTS} times {LEARNING_STEPS} steps on one batch InfoNCE fell to {lowest:.3f}. It "
        "cannot fall below log 2 = 0.693 where the positive is also a negative."
    )


def check_labels(subject: Subject) -> None:
    """Labels change neither loss nor features; for a supervised method, not the features."""
    method, at = subject.build(), subject.moment()
    assert at.labels is not None
    others = [replace(at, labels=at.labels.flip(0)), replace(at, labels=(at.labels + 1) % 3)]
    if not subject.method.needs_labels:
        others.append(replace(at, labels=None))
    method.eval()  # a second pass in training mode would be the same too, but for its statistics
    expected = subject.forward(method)
    for other in others:
        step = subject.forward(method, at=other)
        if not torch.equal(step.features, expected.features):
            raise BrokenRuleError("The features of an image depend on labels.")
        if not subject.method.needs_labels and not torch.equal(step.loss, expected.loss):
            raise BrokenRuleError(
                "The loss depends on labels, but `needs_labels` of the settings is False."
            )


class _MomentByPosition(Moment):
    """Draws random numbers by the position of an image in the batch, not by its index."""

    def _index(self, x: Shaped[Tensor, "n ..."]) -> Int64[Tensor, " n"]:
        return torch.arange(len(x), device=x.device)


def check_image_index(subject: Subject) -> None:
    """The index of an image in the data only selects random numbers; the loss ignores it."""
    if subject.method.needs_memory_bank:
        raise DoesNotApplyError("It stores something for each image, by its index.")
    method, at = subject.build().eval(), subject.moment()
    assert at.index is not None
    losses = [
        subject.forward(method, at=_MomentByPosition(**{**vars(at), "index": index})).loss
        for index in (at.index, at.index.flip(0), at.index + 7)
    ]
    if not all(torch.equal(loss, losses[0]) for loss in losses):
        raise BrokenRuleError(
            "The loss depends on the index of the images, in whose order classes often come. Use "
            "it for random numbers alone, or set `needs_memory_bank`."
        )
