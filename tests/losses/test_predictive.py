"""SimSiam's and BYOL's losses against their definitions."""

import pytest
import torch

from selfsight.losses import negative_cosine, regression


@pytest.fixture
def pair():
    torch.manual_seed(0)
    return [torch.randn(5, 7, dtype=torch.float64, requires_grad=True) for _ in range(2)]


def test_negative_cosine_is_the_mean_of_minus_cosines(pair):
    p, z = pair
    by_hand = -sum(p[i] @ z[i] / p[i].norm() / z[i].norm() for i in range(5)) / 5
    torch.testing.assert_close(negative_cosine(p, z), by_hand, rtol=1e-12, atol=0)


def test_regression_is_the_squared_distance_of_unit_vectors(pair):
    p, z = pair
    by_hand = sum(((p[i] / p[i].norm() - z[i] / z[i].norm()) ** 2).sum() for i in range(5)) / 5
    torch.testing.assert_close(regression(p, z), by_hand, rtol=1e-12, atol=0)


@pytest.mark.parametrize("loss", [negative_cosine, regression])
def test_blocks_give_the_mean_of_their_losses(pair, loss):
    p, z = pair
    blocks = torch.stack([p, 2 * z, p - z])
    mean = sum(loss(block, z) for block in blocks) / 3
    torch.testing.assert_close(loss(blocks, z), mean, rtol=1e-12, atol=1e-12)
