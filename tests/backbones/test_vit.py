"""MoCo v3's ViT against timm's, its published positions, and the sizes of the paper's tables."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn

from selfsight.backbones import BackboneConfig
from selfsight.backbones.flops import multiply_adds, parameters
from selfsight.backbones.freeze_stages import freeze_stages
from selfsight.backbones.vit import TokenBatchNorm, ViT, sincos_positions
from selfsight.catalog import build_recipe
from selfsight.errors import UserError
from selfsight.nn import Encoder, Teacher

REFERENCE = Path(__file__).parents[1] / "reference" / "mocov3_sincos.npz"


def small(**settings):
    torch.manual_seed(0)
    return ViT(24, 2, 3, **{"patch": 4, "image_size": 16, **settings})


def images(size=16, dtype=torch.float32):
    g = torch.Generator().manual_seed(1)
    return torch.randn(3, 3, size, size, generator=g, dtype=dtype)


@pytest.mark.parametrize(("h", "w", "d"), [(3, 3, 16), (2, 4, 16), (14, 14, 384)])
def test_positions_are_those_of_the_published_code(h, w, d):
    theirs = torch.from_numpy(np.load(REFERENCE)[f"pos_embed_h{h}_w{w}_d{d}"])
    torch.testing.assert_close(sincos_positions(h, w, d), theirs, rtol=0, atol=2e-6)
    assert not sincos_positions(h, w, d)[:, 0].any()


def test_weights_load_into_timm_and_give_its_features():
    ours = small()
    theirs = timm.models.vision_transformer.VisionTransformer(
        img_size=16, patch_size=4, embed_dim=24, depth=2, num_heads=3, num_classes=0
    )
    theirs.load_state_dict(dict(ours.state_dict()) | {"pos_embed": ours.pos_embed})
    torch.testing.assert_close(ours(images()), theirs(images()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "millions", "giga"),
    [
        ("vit_s16", 22, 4.6),
        ("vit_b16", 86, 17.5),
        ("vit_l16", 304, 61.3),
        ("vit_h14", 631, 166.7),
        ("vit_bn_b16", 86, 17.5),
        ("resnet50", None, 4.1),
        ("resnet50x2", 94, None),
        ("resnet50x4", 375, None),
    ],
)
def test_size_and_cost_are_those_of_the_tables(name, millions, giga, monkeypatch):
    """MoCo v3, table 3 (multiply-adds per image of 224 pixels) and figure 8.

    The table's 632 million for ViT-H count a classifier of 1000 classes, which is not here.
    """
    # What takes longest and is not counted: norms, drawing weights, building them twice.
    for kind in (nn.LayerNorm, nn.BatchNorm2d, TokenBatchNorm):
        monkeypatch.setattr(kind, "forward", lambda self, x: x)
    for draw in ("normal_", "uniform_"):
        monkeypatch.setattr(torch.Tensor, draw, lambda x, *_, **__: x)
    monkeypatch.setattr(F, "gelu", lambda x: x)
    monkeypatch.setattr(BackboneConfig, "build", cache(BackboneConfig.build))
    config = BackboneConfig(name=name)
    if millions:
        assert parameters(config) / 1e6 == pytest.approx(
            millions, rel=0.02 if millions < 50 else 0.01
        )
    if giga:
        assert multiply_adds(config) / 1e9 == pytest.approx(giga, rel=0.01)


def test_query_key_and_value_are_drawn_as_three_matrices():
    network = ViT(192, 1, 3, patch=4, image_size=16)
    bounds = {
        "blocks.0.attn.qkv": (6 / (192 + 192)) ** 0.5,
        "blocks.0.attn.proj": (6 / (192 + 192)) ** 0.5,
        "blocks.0.mlp.fc1": (6 / (192 + 768)) ** 0.5,
        "patch_embed.proj": (6 / (3 * 16 + 192)) ** 0.5,
    }
    for name, bound in bounds.items():
        layer = network.get_submodule(name)
        assert 0.97 * bound < layer.weight.abs().max().item() <= bound, name
        assert layer.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.03), name
        assert not layer.bias.any()
    assert 0 < network.cls_token.abs().max() < 1e-5
    norms = [m for m in network.modules() if isinstance(m, nn.LayerNorm)]
    assert {m.eps for m in norms} == {1e-6}


@pytest.mark.parametrize("frozen", [True, False])
def test_a_frozen_patch_projection_gets_no_gradient_and_the_teacher_keeps_it(frozen):
    student = Encoder(small(freeze_patch=frozen), nn.Linear(24, 4))
    teacher = Teacher(student)
    before = student.backbone.patch_embed.proj.weight.clone()
    student(images())[1].sum().backward()
    torch.optim.SGD([p for p in student.parameters() if p.requires_grad], lr=0.1).step()
    teacher.follow(student, 0.9)
    kept = teacher.net.backbone.patch_embed.proj.weight
    reached = {n for n, p in student.backbone.named_parameters() if p.grad is not None}
    assert ("patch_embed.proj.weight" in reached) == (not frozen)
    assert ("patch_embed.proj.bias" in reached) == (not frozen)
    assert torch.allclose(kept, before, rtol=1e-6, atol=0) == frozen


def test_vit_bn_has_batch_norm_before_each_mlp_and_nowhere_else():
    network = small(mlp_norm="bn")
    for block in network.blocks:
        assert isinstance(block.norm1, nn.LayerNorm)
        assert isinstance(block.norm2, TokenBatchNorm)
    assert isinstance(network.norm, nn.LayerNorm)


def test_token_batch_norm_is_batch_norm_over_images_and_tokens():
    x = torch.randn(3, 7, 24) * 2 + 1
    theirs = nn.BatchNorm1d(24)
    expected = theirs(x.flatten(0, 1)).unflatten(0, (3, 7))
    ours = TokenBatchNorm(24)
    torch.testing.assert_close(ours(x), expected)
    torch.testing.assert_close(ours.bn.running_mean, theirs.running_mean)


def test_an_image_of_another_size_gets_positions_of_its_own():
    made_for_16, made_for_32 = small(), small(image_size=32)
    made_for_32.load_state_dict(made_for_16.state_dict())
    torch.testing.assert_close(made_for_16(images(32)), made_for_32(images(32)))


def test_a_size_that_does_not_divide_into_patches_is_refused():
    with pytest.raises(UserError, match="225 pixels do not divide into patches of 16"):
        BackboneConfig(name="vit_s16", image_size=225)
    with pytest.raises(UserError, match="18 pixels do not divide"):
        small()(images(18))


def test_a_recipe_whose_views_do_not_divide_into_patches_is_refused():
    from dataclasses import replace

    made = build_recipe("mocov3.imagenet_vit_s16_300ep")
    with pytest.raises(UserError, match="100 pixels do not divide into patches of 16"):
        replace(made, views=tuple(replace(v, size=100) for v in made.views))


def test_the_last_block_is_never_frozen():
    network = small()
    count = len(network.blocks)
    with pytest.raises(UserError, match=f"has {count} stages after its stem"):
        freeze_stages(network, count)
    freeze_stages(network, count - 1)
    trained = {name for name, p in network.named_parameters() if p.requires_grad}
    assert all(name.startswith((f"blocks.{count - 1}.", "norm.")) for name in trained)
