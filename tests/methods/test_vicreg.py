"""VICReg: the published numbers pass through the whole method."""

import pytest
import torch

from selfsight.methods.vicreg import VICRegConfig
from tests.methods.small import make, moment, views
from tests.methods.test_barlow_twins import published


@pytest.mark.parametrize(
    ("term", "weights"),
    [
        ("full", (25.0, 25.0, 1.0)),
        ("sim", (1.0, 0.0, 0.0)),
        ("std", (0.0, 1.0, 0.0)),
        ("cov", (0.0, 0.0, 1.0)),
    ],
)
def test_loss_and_gradients_are_those_of_the_released_code(term, weights):
    names = ("invariance", "variance", "covariance")
    config = VICRegConfig(dim=6, hidden_dim=6, **dict(zip(names, weights, strict=True)))
    published(config, "vicreg", term)


def test_collapse_costs_the_whole_variance_term():
    """With one embedding for all, views agree and columns do not vary: 25 x (1 - 0.01) is left."""
    method = make("vicreg")
    for p in method.parameters():
        p.data.zero_()
    assert method(views(method), moment()).loss.item() == pytest.approx(25 * 0.99, rel=1e-5)


def test_the_views_can_change_places():
    method = make("vicreg").double()
    x = views(method, dtype=torch.float64)
    torch.testing.assert_close(method(x, moment()).loss, method(x[::-1], moment()).loss)
