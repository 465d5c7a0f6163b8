"""Two processes of N images equal one process of 2N: for every method, step after step."""

import pytest
import torch

from selfsight import dist
from selfsight.methods import BASELINES, METHODS
from selfsight.nn.batch_norm import average_running_statistics
from tests.methods.small import make, moment, views

STEPS = 3


def trained(name, settings):
    """Losses, first gradients and final state of a few steps on this process's share."""
    method = make(name, **settings).double()
    parameters = [p for p in method.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    losses, gradients = [], []
    for s in range(STEPS):
        optimizer.zero_grad()
        step = method(views(method, s, dtype=torch.float64), moment(s))
        loss = step.loss
        loss.backward()
        mean = dist.mean(torch.cat([p.grad.flatten() for p in parameters]))
        for p, grad in zip(parameters, mean.split([p.numel() for p in parameters]), strict=True):
            p.grad = grad.view_as(p)
        losses.append(dist.mean(loss.detach()))
        gradients.append([p.grad.clone() for p in parameters])
        optimizer.step()
        method.after_step(moment(s), step)
        average_running_statistics(method)
    return losses, gradients, {k: v.clone() for k, v in method.state_dict().items()}


CASES = [(name, {}) for name in sorted(METHODS | BASELINES)] + [
    ("instdisc", {"loss": "softmax", "proximal_lambda": 3.0}),
    ("jcl", {"bn": "split", "bn_group": 2}),
    ("jcl", {"bn": "shuffle", "bn_group": 8, "loss": "multi_key"}),
    ("moco", {"bn": "sync"}),
    ("moco", {"queue_size": 3, "alpha": 64.0}),
    ("moco", {"queue_size": 24, "symmetric": True}),
    ("moco", {"bn": "split", "bn_group": 2}),
    ("moco", {"bn": "shuffle", "bn_group": 8}),
    ("simclr", {"num_negatives": 5, "alpha": 64.0}),
    ("simclr", {"num_negatives": 5, "negatives": "cross"}),
    ("simo", {"shared_negatives": False, "symmetric": True}),
    ("simo", {"bn": "shuffle", "bn_group": 4}),
    ("mocov3", {"head": "vit", "predictor": False, "momentum_end": 0.99}),
    ("mocov3", {"norm": "ws"}),
    ("msbreg", {"singular": "a", "regularized": "projection", "norm": "ln"}),
    ("msbreg", {"singular": "c", "centroid": "both", "uniformity_weight": 0.5}),
]


@pytest.mark.parametrize(("name", "settings"), CASES, ids=str)
def test_two_processes_equal_one(two_processes, name, settings):
    losses, gradients, state = trained(name, settings)
    for theirs in two_processes(trained, name, settings):
        torch.testing.assert_close(theirs[0], losses, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(theirs[1], gradients, rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(theirs[2], state, rtol=1e-7, atol=1e-9)
