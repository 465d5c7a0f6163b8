"""SimSiam with more than two views is FastSiam."""

import copy

import numpy as np
import pytest
import torch

from tests.methods.small import make, moment, views


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.mark.parametrize("num_views", [2, 3, 4])
def test_the_target_of_a_view_is_the_mean_of_the_other_views_raw_embeddings(num_views):
    method = make("simsiam", num_views=num_views, last_norm="both").double()
    with torch.no_grad():  # embeddings of unequal length: the mean of unit vectors is another
        method.student.projector[-1].weight.uniform_(0.1, 5.0)
        method.student.projector[-1].bias.uniform_(-3.0, 3.0)
    x, total = views(method, dtype=torch.float64), 0.0
    by_hand = copy.deepcopy(method)
    z = [by_hand.student(v)[1] for v in x]  # one pass for each view, with its own statistics
    p = [by_hand.predictor(z_i).detach().numpy() for z_i in z]
    z = [z_i.detach().numpy() for z_i in z]
    for i in range(num_views):
        target = sum(z[j] for j in range(num_views) if j != i) / (num_views - 1)
        total -= (unit(p[i]) * unit(target)).sum(1).mean() / num_views
    assert method(x, moment()).loss.item() == pytest.approx(total, rel=1e-12)


def test_no_gradient_reaches_a_view_through_its_role_as_a_target():
    method = make("simsiam", num_views=3).double()
    x = [v.requires_grad_() for v in views(method, dtype=torch.float64)]
    z = [method.student(v)[1] for v in x]
    p = method.predictor(z[0])
    others = (z[1] + z[2]).detach() / 2
    alone = -torch.cosine_similarity(p, others).mean() / 3
    expected = torch.autograd.grad(alone, x[0])[0]
    found = torch.autograd.grad(method(x, moment()).loss, x[0])[0]
    torch.testing.assert_close(found, expected)
