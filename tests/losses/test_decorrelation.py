"""Barlow Twins and VICReg against their formulas, written with loops in float64."""

import pytest
import torch

from selfsight import dist
from selfsight.losses import barlow_twins, vicreg

N = 6


@pytest.fixture(params=[4, 2 * N, 15], ids=lambda d: f"width {d}")
def pair(request):
    """Embeddings with fewer columns than twice the images, as many, and more."""
    torch.manual_seed(0)
    return [
        torch.randn(N, request.param, dtype=torch.float64, requires_grad=True) for _ in range(2)
    ]


def agree(loss, by_hand, inputs):
    torch.testing.assert_close(loss, by_hand, rtol=1e-12, atol=1e-12)
    mine, theirs = torch.autograd.grad(loss, inputs), torch.autograd.grad(by_hand, inputs)
    torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


def test_barlow_twins_is_equation_1(pair):
    a, b = ((z - z.mean(0)) / (z.var(0, correction=0) + 1e-5).sqrt() for z in pair)
    by_hand = 0.0
    for i in range(a.shape[1]):
        for j in range(a.shape[1]):
            c = sum(a[n, i] * b[n, j] for n in range(N)) / N
            by_hand = by_hand + ((1 - c) ** 2 if i == j else 0.0051 * c**2)
    agree(barlow_twins(*pair), by_hand, pair)


def test_vicreg_is_its_three_terms(pair):
    by_hand = 25 * sum((a - b) ** 2 for a, b in zip(*(z.flatten() for z in pair), strict=True))
    d = pair[0].shape[1]
    by_hand = by_hand / (N * d)
    for z in pair:
        centered = z - z.mean(0)
        for i in range(d):
            spread = (centered[:, i] ** 2).sum() / (N - 1)
            by_hand = by_hand + 25 / 2 * torch.relu(1 - (spread + 1e-4).sqrt()) / d
            for j in range(d):
                if i != j:
                    covariance = (centered[:, i] * centered[:, j]).sum() / (N - 1)
                    by_hand = by_hand + covariance**2 / d
    agree(vicreg(*pair), by_hand, pair)


def test_barlow_twins_does_not_see_shift_or_scale_of_a_column():
    torch.manual_seed(0)
    a, b = 100 * torch.randn(2, N, 4, dtype=torch.float64)
    moved = 3 * a + torch.arange(4)
    torch.testing.assert_close(barlow_twins(moved, b), barlow_twins(a, b), rtol=1e-6, atol=0)


def shared(loss, width):
    """Loss of the global batch, and its gradient for this process's share of the images."""
    z = torch.randn(2, N, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pair = [dist.local_rows(view).requires_grad_() for view in z]
    value = loss(*pair)
    gradients = torch.autograd.grad(value, pair)
    return dist.mean(value.detach()), torch.stack(gradients) / dist.world_size()


@pytest.mark.parametrize("width", [4, 15])
@pytest.mark.parametrize("loss", [barlow_twins, vicreg])
def test_two_processes_equal_one(two_processes, loss, width):
    """Also where columns are so many that images are multiplied, as in the published runs."""
    value, gradients = shared(loss, width)
    shares = two_processes(shared, loss, width)
    torch.testing.assert_close([v for v, _ in shares], [value] * 2)
    torch.testing.assert_close(torch.cat([g for _, g in shares], 1), gradients)


@pytest.mark.parametrize("alike", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("loss", [barlow_twins, vicreg])
def test_products_of_few_images_are_as_exact_in_float32_as_those_of_columns(loss, alike):
    """Also for views that are equal, and for embeddings of which half the columns are dead."""
    torch.manual_seed(0)
    z1, noise = torch.randn(2, 32, 512, dtype=torch.float64)
    z1[:, 256:] *= 1e-6
    z2 = alike * z1 + (1 - alike) * noise
    exact = [z.clone().requires_grad_() for z in (z1, z2)]
    rounded = [z.float().requires_grad_() for z in (z1, z2)]
    expected, found = loss(*exact), loss(*rounded)
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    for ours, theirs in zip(
        torch.autograd.grad(found, rounded), torch.autograd.grad(expected, exact), strict=True
    ):
        assert (ours - theirs).norm() <= 1e-5 * theirs.norm()


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # of torch's own, while it compiles
@pytest.mark.parametrize("images", [24, 200])
@pytest.mark.parametrize("loss", [barlow_twins, vicreg])
def test_on_a_gpu_products_of_images_and_of_columns_are_compiled(loss, images):
    torch.manual_seed(0)
    here = [torch.randn(images, 128, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    there = [z.detach().cuda().requires_grad_() for z in here]
    expected, found = loss(*here), loss(*there)
    assert found.item() == pytest.approx(expected.item(), rel=1e-9)
    theirs = torch.autograd.grad(expected, here)
    for ours, other in zip(torch.autograd.grad(found, there), theirs, strict=True):
        torch.testing.assert_close(ours.cpu(), other, rtol=1e-7, atol=1e-12)
    with torch.autocast("cuda", torch.bfloat16):
        assert loss(*(z.bfloat16() for z in there)).dtype == torch.float32
