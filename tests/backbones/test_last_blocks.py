"""Features of the last blocks, against timm's own functions and DINOv2's definition."""

import pytest
import timm
import torch
from torch import nn

from selfsight.backbones import BackboneConfig
from selfsight.backbones.from_timm import TimmBackbone
from selfsight.backbones.last_blocks import LastBlocks
from selfsight.backbones.vit import ViT
from selfsight.errors import UserError
from selfsight.nn import Backbone


def shaken(network):
    """Random weights that make every token different."""
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in network.parameters():
            p.copy_(torch.randn(p.shape, generator=g) * 0.1)
    return network.eval()


def timm_vit(**settings):
    return shaken(
        timm.models.vision_transformer.VisionTransformer(
            img_size=32, patch_size=8, embed_dim=64, depth=5, num_heads=2, num_classes=0, **settings
        )
    )


def images():
    return torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("settings", [{}, {"reg_tokens": 4, "no_embed_class": True}])
@pytest.mark.parametrize(("n", "patch_mean"), [(1, False), (1, True), (4, False), (4, True)])
@torch.no_grad()
def test_they_are_dinov2_s_concatenation_of_timm_s_layers(n, patch_mean, settings):
    net, x = timm_vit(**settings), images()
    layers = net.get_intermediate_layers(x, n=n, norm=True, return_prefix_tokens=True)
    parts = [prefix[:, 0] for _, prefix in layers]
    parts += [layers[-1][0].mean(1)] if patch_mean else []
    blocks = LastBlocks(Backbone.wrap(net, dim=64), n, patch_mean=patch_mean)
    assert torch.equal(blocks(x), torch.cat(parts, dim=-1))
    assert blocks.dim == blocks(x).shape[1] == 64 * len(parts)


@torch.no_grad()
def test_our_vit_has_the_tokens_of_timm_s():
    ours = shaken(ViT(64, 5, 2, patch=8, image_size=32))
    net = timm_vit()
    net.load_state_dict(ours.state_dict() | {"pos_embed": ours.pos_embed})
    x = images()
    theirs = LastBlocks(Backbone.wrap(net.eval(), dim=64), 3, patch_mean=True)
    same = LastBlocks(ours, 3, patch_mean=True)
    torch.testing.assert_close(same(x), theirs(x), rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(LastBlocks(ours, 1)(x), ours(x))


@pytest.mark.parametrize(
    ("network", "n", "sentence"),
    [
        (BackboneConfig(name="resnet8_narrow").build(), 1, "a ResNet has none"),
        (TimmBackbone("mobilenetv3_small_050", image_size=32), 1, "a MobileNetV3 has none"),
        (timm_vit(class_token=False, global_pool="avg"), 1, "VisionTransformer has none"),
        (nn.Flatten(), 1, "a Flatten has none"),
        (ViT(64, 2, 2, patch=8, image_size=32), 3, "the network has 2 blocks"),
        (ViT(64, 2, 2, patch=8, image_size=32), 0, "--last-blocks is 0"),
    ],
)
def test_a_network_without_such_blocks_gets_a_sentence(network, n, sentence):
    with pytest.raises(UserError, match=sentence):
        LastBlocks(network, n)
