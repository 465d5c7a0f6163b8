"""BYOL: its loss by hand."""

import copy

import numpy as np
import pytest

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
