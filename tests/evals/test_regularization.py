import math

import pytest
import timm
import torch
from scipy.stats import kstest
from torch import nn

from selfsight.backbones import BackboneConfig
from selfsight.evals.classifier_settings import Regularization
from selfsight.evals.regularization import (
    DropPath,
    add_drop_path,
    cut_box,
    depths,
    erased,
    follow,
    mixed,
    neighbors,
    place,
    soft_targets,
)
from selfsight.nn.batch_norm import convert


def batch(n=6, side=8):
    x = torch.rand(n, 3, side, side, generator=torch.Generator().manual_seed(0))
    return x, soft_targets(torch.arange(n) % 3, 3, 0.0)


def test_mixup_blends_neighbors_and_their_labels_alike():
    x, y = batch()
    shares = []
    for step in range(300):
        new, labels = mixed(x, y, Regularization(mixup=0.8), seed=0, step=step)
        kept = labels[0, 0].item()
        torch.testing.assert_close(new, kept * x + (1 - kept) * x[[1, 0, 3, 2, 5, 4]])
        torch.testing.assert_close(labels, kept * y + (1 - kept) * y[[1, 0, 3, 2, 5, 4]])
        shares.append(kept)
    assert kstest(shares, "beta", args=(0.8, 0.8)).pvalue > 0.01


def test_cutmix_puts_a_box_of_the_neighbor_in_and_counts_its_area():
    x, y = batch()
    for step in range(20):
        new, labels = mixed(x, y, Regularization(cutmix=1.0), seed=0, step=step)
        partner = x[[1, 0, 3, 2, 5, 4]]
        own, theirs = new == x, new == partner
        assert (own | theirs).all()
        assert labels[0, 0].item() == pytest.approx(own.float().mean().item(), abs=1e-6)


def test_both_take_turns():
    x, y = batch()
    both = Regularization(mixup=0.8, cutmix=1.0)
    cut = [
        bool((mixed(x, y, both, seed=0, step=s)[0][0] == x[0]).any(dim=0).any()) for s in range(200)
    ]
    assert 0.35 < sum(cut) / 200 < 0.6


def test_without_either_nothing_changes():
    x, y = batch()
    assert mixed(x, y, Regularization(), seed=0, step=0) == (x, y)


def test_the_last_of_an_odd_batch_is_its_own_neighbor():
    assert neighbors(5, torch.device("cpu")).tolist() == [1, 0, 3, 2, 4]


def test_a_cut_box_is_cut_at_the_border():
    rows, columns = cut_box(10, 20, 0.75, 0.0, 0.999)
    assert (rows.start, rows.stop) == (0, 3)
    assert (columns.start, columns.stop) == (14, 20)


def test_smoothing_keeps_the_sum():
    y = soft_targets(torch.tensor([1, 0]), 4, 0.1)
    torch.testing.assert_close(y.sum(dim=1), torch.ones(2))
    assert y[0].tolist() == pytest.approx([0.025, 0.925, 0.025, 0.025])


def test_erasing_fills_a_box_of_a_share_of_the_images():
    x = torch.full((2000, 1, 16, 16), 7.0)
    index, at = torch.arange(2000), torch.zeros(2000, 1, dtype=torch.long)
    gone = erased(x, index, 0.25, seed=0, at=at)[:, 0] != 7.0
    hit = gone.flatten(1).any(dim=1)
    assert hit.double().mean().item() == pytest.approx(0.25, abs=0.03)
    area = gone[hit].flatten(1).double().mean(dim=1)
    assert area.max() < 0.4 and area.mean().item() == pytest.approx((0.02 + 1 / 3) / 2, abs=0.02)
    for one in gone[hit][:20]:  # a box: as many as its rows times its columns
        assert one.sum() == one.any(dim=0).sum() * one.any(dim=1).sum()
    noise = erased(x, index, 0.25, seed=0, at=at)[:, 0][gone]
    assert noise.mean().abs() < 0.05 and noise.std().item() == pytest.approx(1, abs=0.05)


def test_erasing_goes_by_image_and_epoch():
    x, _ = batch(4)
    index, at = torch.tensor([3, 1, 4, 1]), torch.tensor([0, 0, 0, 1])[:, None]
    whole = erased(x, index, 0.9, seed=0, at=at)
    for i in range(4):
        one = slice(i, i + 1)
        assert torch.equal(whole[one], erased(x[one], index[one], 0.9, seed=0, at=at[one]))


def test_dropped_rows_are_nought_and_the_mean_stays():
    drop = DropPath(0.25, 0).train()
    place([drop], torch.arange(4000), seed=0, step=3)
    x = drop(torch.ones(4000, 2, 2))
    kept = x[:, 0, 0] > 0
    assert kept.double().mean().item() == pytest.approx(0.75, abs=0.03)
    torch.testing.assert_close(x[kept].unique(), torch.tensor([4 / 3]))
    place([drop], torch.arange(2000, 4000), seed=0, step=3)
    assert torch.equal(drop(torch.ones(2000)) > 0, kept[2000:])  # by row, not by batch
    assert torch.equal(drop.eval()(x), x)


def backbone(name, size=32):
    return BackboneConfig(name=name, image_size=size).build()


@pytest.mark.parametrize(
    ("name", "branches", "blocks"),
    [("resnet18_narrow", 8, 8), ("vit_t4", 24, 12), ("timm:vit_tiny_patch16_224", 24, 12)],
)
def test_drop_path_stands_on_every_branch_and_rises_to_its_rate(name, branches, blocks):
    net = convert(backbone(name), None)
    x = torch.rand(2, 3, 32, 32)
    before = net.eval()(x)
    drops = add_drop_path(net, 0.2)
    assert len(drops) == branches
    rates = sorted({d.rate for d in drops})
    assert rates == pytest.approx([0.2 * i / (blocks - 1) for i in range(blocks)])
    assert torch.equal(net.eval()(x), before)
    place(drops, torch.arange(2), seed=0, step=0)
    for drop in drops:
        drop.rate = 1 - 1e-9  # leaves every branch out
    assert not torch.allclose(net.train()(x), before)


def test_networks_without_known_branches_get_none():
    assert add_drop_path(nn.Sequential(nn.Conv2d(3, 3, 1)), 0.5) == []


@pytest.mark.parametrize(
    ("name", "first", "last", "count"),
    [
        ("vit_t4", "patch_embed.proj.weight", "norm.weight", 14),
        ("resnet18_narrow", "conv1.weight", "layer4.1.conv2.weight", 9),
        ("timm:vit_tiny_patch16_224", "net.patch_embed.proj.weight", "net.norm.weight", 14),
        ("timm:resnet18", "net.conv1.weight", "net.layer4.1.conv2.weight", 9),
    ],
)
def test_layers_are_counted_from_the_pixels(name, first, last, count):
    net = backbone(name)
    found = depths(net)
    assert set(found) == {n for n, _ in net.named_parameters()}
    assert found[first] == 0
    assert found[last] == max(found.values())
    assert len(set(found.values())) in (count, count - 1)  # timm counts the last norm to a block


def test_timm_and_we_group_the_same_vit_alike():
    ours = depths(backbone("vit_t4"))
    theirs = depths(backbone("timm:vit_tiny_patch16_224"))
    for block in range(12):
        name = f"blocks.{block}.mlp.fc1.weight"
        assert ours[name] == theirs[f"net.{name}"] == block + 1


def test_the_average_follows_as_timms_does():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    judge = timm.utils.ModelEmaV2(net, decay=0.9)
    mine = timm.utils.ModelEmaV2(net).module
    for _ in range(3):
        net(torch.rand(2, 3, 4, 4))
        with torch.no_grad():
            for p in net.parameters():
                p += torch.randn_like(p)
        judge.update(net)
        follow(mine, net, 0.9)
    for (name, p), q in zip(mine.named_parameters(), judge.module.parameters(), strict=True):
        torch.testing.assert_close(p, q, msg=name)
    assert torch.equal(mine[1].running_mean, net[1].running_mean)  # statistics are copied
    assert not math.isclose(net[1].running_mean[0].item(), 0.0)
