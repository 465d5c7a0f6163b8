"""Barlow Twins and VICReg against their formulae, written with loops in float64."""

import pytest
import torch

from selfsight.losses import barlow_twins, vicreg

N, D = 6, 4


@pytest.fixture
def pair():
    torch.manual_seed(0)
    return [torch.randn(N, D, dtype=torch.float64, requires_grad=True) for _ in range(2)]


def agree(loss, by_hand, inputs):
    torch.testing.assert_close(loss, by_hand, rtol=1e-12, atol=1e-12)
    mine, theirs = torch.autograd.grad(loss, inputs), torch.autograd.grad(by_hand, inputs)
    torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


def test_barlow_twins_is_equation_1(pair):
    a, b = ((z - z.mean(0)) / (z.var(0, correction=0) + 1e-5).sqrt() for z in pair)
    by_hand = 0.0
    for i in range(D):
        for j in range(D):
            c = sum(a[n, i] * b[n, j] for n in range(N)) / N
            by_hand = by_hand + ((1 - c) ** 2 if i == j else 0.0051 * c**2)
    agree(barlow_twins(*pair), by_hand, pair)


def test_vicreg_is_its_three_terms(pair):
    by_hand = 25 * sum((a - b) ** 2 for a, b in zip(*(z.flatten() for z in pair), strict=True))
    by_hand = by_hand / (N * D)
    for z in pair:
        centered = z - z.mean(0)
        for i in range(D):
            spread = (centered[:, i] ** 2).sum() / (N - 1)
            by_hand = by_hand + 25 / 2 * torch.relu(1 - (spread + 1e-4).sqrt()) / D
            for j in range(D):
                if i != j:
                    covariance = (centered[:, i] * centered[:, j]).sum() / (N - 1)
                    by_hand = by_hand + covariance**2 / D
    agree(vicreg(*pair), by_hand, pair)


def test_barlow_twins_does_not_see_shift_or_scale_of_a_column():
    torch.manual_seed(0)
    a, b = 100 * torch.randn(2, N, D, dtype=torch.float64)
    moved = 3 * a + torch.arange(D)
    torch.testing.assert_close(barlow_twins(moved, b), barlow_twins(a, b), rtol=1e-6, atol=0)
