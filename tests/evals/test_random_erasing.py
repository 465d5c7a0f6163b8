import pytest
import torch

from selfsight.evals.random_erasing import erase


def test_random_erasing_fills_a_box_with_noise_in_a_share_of_the_images():
    x = torch.full((2000, 1, 16, 16), 7.0)
    index, epoch = torch.arange(2000), torch.zeros(2000, 1, dtype=torch.long)
    gone = erase(x, index, 0.25, seed=0, epoch=epoch)[:, 0] != 7.0
    hit = gone.flatten(1).any(dim=1)
    assert hit.double().mean().item() == pytest.approx(0.25, abs=0.03)
    area = gone[hit].flatten(1).double().mean(dim=1)
    assert area.max() < 0.4 and area.mean().item() == pytest.approx((0.02 + 1 / 3) / 2, abs=0.02)
    for one in gone[hit][:20]:  # a box: as many as its rows times its columns
        assert one.sum() == one.any(dim=0).sum() * one.any(dim=1).sum()
    noise = erase(x, index, 0.25, seed=0, epoch=epoch)[:, 0][gone]
    assert noise.mean().abs() < 0.05 and noise.std().item() == pytest.approx(1, abs=0.05)


def test_random_erasing_depends_on_image_and_epoch_alone():
    x = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    index, epoch = torch.tensor([3, 1, 4, 1]), torch.tensor([0, 0, 0, 1])[:, None]
    all_at_once = erase(x, index, 0.9, seed=0, epoch=epoch)
    for i in range(4):
        one = slice(i, i + 1)
        assert torch.equal(
            all_at_once[one], erase(x[one], index[one], 0.9, seed=0, epoch=epoch[one])
        )
