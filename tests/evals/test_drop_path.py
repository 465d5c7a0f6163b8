import pytest
import torch
from torch import nn

from selfsight.backbones import BackboneConfig
from selfsight.evals.drop_path import DropPath, add_drop_path, set_rows
from selfsight.nn.batch_norm import convert_batch_norm


def test_drop_path_zeros_rows_by_their_place_in_the_global_batch():
    drop = DropPath(0.25, 0).train()
    set_rows([drop], torch.arange(4000), seed=0, step=3)
    x = drop(torch.ones(4000, 2, 2))
    kept = x[:, 0, 0] > 0
    assert kept.double().mean().item() == pytest.approx(0.75, abs=0.03)
    torch.testing.assert_close(x[kept].unique(), torch.tensor([4 / 3]))
    set_rows([drop], torch.arange(2000, 4000), seed=0, step=3)
    assert torch.equal(drop(torch.ones(2000)) > 0, kept[2000:])  # by row, not by batch
    assert torch.equal(drop.eval()(x), x)


def backbone(name, size=32):
    return BackboneConfig(name=name, image_size=size).build()


@pytest.mark.parametrize(
    ("name", "branches", "blocks"),
    [("resnet18_narrow", 8, 8), ("vit_t4", 24, 12), ("timm:vit_tiny_patch16_224", 24, 12)],
)
def test_drop_path_is_added_to_every_branch_and_rises_with_depth(name, branches, blocks):
    net = convert_batch_norm(backbone(name), None)
    x = torch.rand(2, 3, 32, 32)
    before = net.eval()(x)
    drops = add_drop_path(net, 0.2)
    assert len(drops) == branches
    rates = sorted({d.rate for d in drops})
    assert rates == pytest.approx([0.2 * i / (blocks - 1) for i in range(blocks)])
    assert torch.equal(net.eval()(x), before)
    set_rows(drops, torch.arange(2), seed=0, step=0)
    for drop in drops:
        drop.rate = 1 - 1e-9  # leaves every branch out
    assert not torch.allclose(net.train()(x), before)


def test_a_network_without_known_branches_gets_no_drop_path():
    assert add_drop_path(nn.Sequential(nn.Conv2d(3, 3, 1)), 0.5) == []
