"""Recomputed blocks give what stored ones give, and keep less of it in memory."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from selfsight.backbones import BackboneConfig
from selfsight.errors import UserError
from selfsight.methods import METHODS
from selfsight.nn.activation_checkpointing import check_blocks, find_blocks, recompute_blocks
from tests.methods.small import SMALL
from tests.nn.test_chunked_encoder import trained


def build(name, backbone, recomputed=False, **settings):
    torch.manual_seed(0)
    config = METHODS[name](**SMALL[name] | settings)
    network = BackboneConfig(name=backbone, image_size=16).build()
    if backbone == "vit_t4":
        network.blocks = network.blocks[:2]
    method = config.build(network)
    if recomputed:
        recompute_blocks(method)
    return method


def assert_equal(mine, theirs):
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "backbone", "settings"),
    [
        ("mocov3", "resnet8_narrow", {}),
        ("moco", "resnet8_narrow", {"bn": "shuffle", "bn_group": 2}),
        ("fast_moco", "resnet8_narrow", {}),
        ("mocov3", "vit_t4", {"head": "vit"}),
    ],
    ids=str,
)
def test_losses_gradients_and_statistics_of_recomputed_blocks_are_the_same_bits(
    name, backbone, settings
):
    expected = trained(build(name, backbone, **settings), None)
    assert_equal(trained(build(name, backbone, recomputed=True, **settings), None), expected)


def averaged(recomputed):
    return trained(build("mocov3", "resnet8_narrow", recomputed), None, DistributedDataParallel)


def test_statistics_over_processes_are_tracked_once(two_processes):
    for mine, theirs in zip(
        two_processes(averaged, True), two_processes(averaged, False), strict=True
    ):
        assert_equal(mine, theirs)


def test_blocks_of_other_libraries_are_found_and_names_do_not_change():
    torchvision = pytest.importorskip("torchvision")
    timm = pytest.importorskip("timm")
    with torch.device("meta"):
        assert len(find_blocks(torchvision.models.resnet50(weights=None))) == 3 + 4 + 6 + 3
        assert len(find_blocks(timm.create_model("vit_tiny_patch16_224"))) == 12
        assert len(find_blocks(timm.create_model("convnext_atto"))) == 2 + 2 + 6 + 2
    plain, again = build("mocov3", "vit_t4"), build("mocov3", "vit_t4", recomputed=True)
    assert list(plain.state_dict()) == list(again.state_dict())
    with pytest.raises(UserError, match="has no blocks"):
        check_blocks(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten()), "activation_checkpointing")
