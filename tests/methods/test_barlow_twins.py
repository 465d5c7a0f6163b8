"""Barlow Twins: the published numbers pass through the whole method, and its rates."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from selfsight.catalog import build_recipe
from selfsight.methods.barlow_twins import BarlowTwinsConfig
from selfsight.nn import Backbone
from selfsight.optim import build_optimizer
from tests.methods.small import make, moment, views


class Pixels(Backbone):
    """Hands its input on, so that embeddings can be given."""

    dim = 6

    def forward(self, x):
        return x.flatten(1)


def published(config, file, tag):
    """The method with identity networks on the inputs of the authors' code."""
    with np.load(Path(__file__).parents[1] / "reference" / f"{file}.npz") as arrays:
        numbers = {name: torch.from_numpy(np.asarray(arrays[name])) for name in arrays}
    method = config.build(Pixels()).double()
    method.student.projector = nn.Identity()
    x = [numbers[z][:, :, None, None].requires_grad_() for z in ("z1", "z2")]
    loss = method(x, moment()).loss
    loss.backward()
    torch.testing.assert_close(loss.detach(), numbers[f"loss_{tag}"], rtol=1e-9, atol=1e-12)
    for z, view in zip(("z1", "z2"), x, strict=True):
        expected = numbers[f"grad_{z}_{tag}"]
        torch.testing.assert_close(view.grad[..., 0, 0], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("redundancy", [0.0051, 0.1])
def test_loss_and_gradients_are_those_of_the_released_code(redundancy):
    config = BarlowTwinsConfig(dim=6, hidden_dim=6, redundancy=redundancy)
    published(config, "barlow", f"lam{redundancy}")


def test_the_views_can_change_places():
    method = make("barlow_twins").double()
    x = views(method, dtype=torch.float64)
    torch.testing.assert_close(method(x, moment()).loss, method(x[::-1], moment()).loss)


def test_biases_and_norms_have_a_rate_of_their_own():
    made = build_recipe("barlow_twins.imagenet_r50_1000ep")
    weights = {"weight": nn.Parameter(torch.ones(2, 2)), "bias": nn.Parameter(torch.ones(2))}
    optimizer = build_optimizer(made.optim, weights.items(), batch_size=made.batch_size)
    rates = {g["label"]: (g["lr"], g["weight_decay"], g["adapt"]) for g in optimizer.param_groups}
    assert rates == {
        "network weights": (pytest.approx(0.2 * 8), 1e-6, True),
        "network biases and norms": (pytest.approx(0.0048 * 8), 0.0, False),
    }
