import pytest
import torch
from scipy.stats import kstest

from selfsight.evals.classifier_settings import Regularization
from selfsight.evals.mixup import cutmix_box, mix_batch, partner_rows, smooth_labels


def batch(n=6, side=8):
    x = torch.rand(n, 3, side, side, generator=torch.Generator().manual_seed(0))
    return x, smooth_labels(torch.arange(n) % 3, 3, 0.0)


def test_mixup_blends_partners_and_their_targets_with_one_weight():
    x, y = batch()
    shares = []
    for step in range(150):
        new, labels = mix_batch(x, y, Regularization(mixup=0.8), seed=0, step=step)
        kept = labels[0, 0].item()
        torch.testing.assert_close(new, kept * x + (1 - kept) * x[[1, 0, 3, 2, 5, 4]])
        torch.testing.assert_close(labels, kept * y + (1 - kept) * y[[1, 0, 3, 2, 5, 4]])
        shares.append(kept)
    assert kstest(shares, "beta", args=(0.8, 0.8)).pvalue > 0.01


def test_cutmix_pastes_a_box_of_the_partner_and_weights_targets_by_area():
    x, y = batch()
    for step in range(20):
        new, labels = mix_batch(x, y, Regularization(cutmix=1.0), seed=0, step=step)
        partner = x[[1, 0, 3, 2, 5, 4]]
        own, theirs = new == x, new == partner
        assert (own | theirs).all()
        assert labels[0, 0].item() == pytest.approx(own.float().mean().item(), abs=1e-6)


def test_mixup_and_cutmix_each_get_half_of_the_batches():
    x, y = batch()
    both = Regularization(mixup=0.8, cutmix=1.0)
    cut = [
        bool((mix_batch(x, y, both, seed=0, step=s)[0][0] == x[0]).any(dim=0).any())
        for s in range(200)
    ]
    assert 0.35 < sum(cut) / 200 < 0.6


def test_mixup_and_cutmix_have_each_its_own_alpha():
    """With alpha 20 the weight is about a half, with 0.1 it is often nearly 0 or 1."""
    x, y = batch(side=32)
    for settings in (
        Regularization(mixup=0.1, cutmix=20.0),
        Regularization(mixup=20.0, cutmix=0.1),
    ):
        middle = {True: [], False: []}  # of CutMix, of mixup
        for step in range(80):
            new, labels = mix_batch(x, y, settings, seed=0, step=step)
            is_cut = bool(((new == x) | (new == x[[1, 0, 3, 2, 5, 4]])).all())
            middle[is_cut].append(0.2 < labels[0, 0].item() < 0.9)
        shares = [sum(found) / len(found) for found in (middle[True], middle[False])]
        near_half, far = shares if settings.cutmix == 20.0 else shares[::-1]
        assert near_half > 0.9 and far < 0.7, settings


def test_without_mixup_and_cutmix_the_batch_is_unchanged():
    x, y = batch()
    assert mix_batch(x, y, Regularization(), seed=0, step=0) == (x, y)


def test_the_last_row_of_an_odd_batch_is_its_own_partner():
    assert partner_rows(5, torch.device("cpu")).tolist() == [1, 0, 3, 2, 4]


def test_a_cutmix_box_is_clipped_at_the_border():
    rows, columns = cutmix_box(10, 20, 0.75, 0.0, 0.999)
    assert (rows.start, rows.stop) == (0, 3)
    assert (columns.start, columns.stop) == (14, 20)


def test_smoothed_targets_sum_to_one():
    y = smooth_labels(torch.tensor([1, 0]), 4, 0.1)
    torch.testing.assert_close(y.sum(dim=1), torch.ones(2))
    assert y[0].tolist() == pytest.approx([0.025, 0.925, 0.025, 0.025])
