"""BYOL: its loss by hand, and what its settings leave out."""

import copy

import numpy as np
import pytest
import torch

from tests.methods.small import make, moment, views


def test_the_loss_is_equation_2_both_ways():
    method = make("byol")
    x1, x2 = views(method)
    other = copy.deepcopy(method)

    def distance(p, t):
        p, t = (v.detach().numpy() / v.detach().norm(dim=1, keepdim=True).numpy() for v in (p, t))
        return np.square(p - t).sum(1).mean()

    predictions = [
        other.predictor(other.student.projector(other.student.features(x))) for x in (x1, x2)
    ]
    targets = [other.teacher(x)[1] for x in (x1, x2)]
    expected = distance(predictions[0], targets[1]) + distance(predictions[1], targets[0])
    assert method([x1, x2], moment()).loss.item() == pytest.approx(expected, rel=1e-5)


def test_without_a_predictor_the_embeddings_are_the_predictions():
    method = make("byol", predictor=False)
    x1, x2 = views(method)
    other = copy.deepcopy(method)
    z1, z2 = other.student(x1)[1], other.student(x2)[1]
    t1, t2 = other.teacher(x1)[1], other.teacher(x2)[1]
    cosines = torch.cosine_similarity(z1, t2) + torch.cosine_similarity(z2, t1)
    torch.testing.assert_close(method([x1, x2], moment()).loss, 4 - 2 * cosines.mean())
    assert not list(method.predictor.parameters())


def test_a_teacher_that_copies_no_weights_is_unlike_its_student():
    """As in the released code, which draws both and moves the teacher only after a step."""
    method = make("byol", copy_init=False)
    for (name, t), s in zip(
        method.teacher.net.named_parameters(), method.student.parameters(), strict=True
    ):
        if t.ndim > 1:
            assert torch.cosine_similarity(t.flatten(), s.flatten(), dim=0).abs() < 0.5, name
    assert method.teacher.momentum is None
