"""MoCo v3: where norms stand in its heads for ResNet and ViT, and how its teacher moves."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from selfsight.backbones import BackboneConfig
from selfsight.backbones.vit import ViT
from selfsight.methods.mocov3 import MoCoV3Config
from selfsight.nn.batch_norm import BatchNorm
from tests.methods.small import TOTAL, make, moment, views


def kinds(head):
    """Layers by name; a norm says what is learned in it."""
    found = []
    for layer in head:
        if isinstance(layer, BatchNorm):
            found.append("norm" if layer.weight is not None else "free norm")
        elif isinstance(layer, nn.Linear):
            assert layer.bias is None
            found.append(f"{layer.in_features}-{layer.out_features}")
        else:
            found.append("relu")
    return found


def test_resnet_heads_are_those_of_the_published_code():
    method = make("mocov3")
    assert kinds(method.student.projector) == ["12-16", "norm", "relu", "16-8", "free norm"]
    assert kinds(method.predictor) == ["8-16", "norm", "relu", "16-8"]


def test_vit_heads_have_a_third_layer_and_a_norm_after_the_predictor():
    method = make("mocov3", head="vit")
    hidden = ["norm", "relu"]
    assert kinds(method.student.projector) == [
        "12-16", *hidden, "16-16", *hidden, "16-8", "free norm",
    ]  # fmt: skip
    assert kinds(method.predictor) == ["8-16", *hidden, "16-8", "free norm"]


def test_a_vit_without_head_norm_has_no_batch_norm_at_all():
    network = ViT(24, 1, 3, patch=4, image_size=16)
    config = MoCoV3Config(head="vit", head_norm=False, dim=8, hidden_dim=16)
    method = config.build(network)
    assert not any(isinstance(m, BatchNorm) for m in method.modules())
    x = views(method)
    alone = method([v[:2] for v in x], moment()).loss
    assert alone.isfinite()
    h = method.student(x[0])[1]
    torch.testing.assert_close(method.student(x[0][:2])[1], h[:2])  # a batch changes nothing


@pytest.mark.parametrize("step", [0, 49, 98])
def test_equal_momentum_at_start_and_end_is_constant(step):
    method = make("mocov3", momentum=0.9, momentum_end=0.9)
    before = [p.clone() for p in method.teacher.net.parameters()]
    for p in method.student.parameters():
        p.data += 1.0
    method.after_step(moment(step), method(views(method), moment(step)))
    for new, old, student in zip(
        method.teacher.net.parameters(), before, method.student.parameters(), strict=True
    ):
        torch.testing.assert_close(new, 0.9 * old + 0.1 * student)


@pytest.mark.parametrize(("name", "ahead"), [("mocov3", 1), ("byol", 0), ("dino", 0)])
@pytest.mark.parametrize("step", [0, 40, TOTAL - 1])
def test_momentum_rises_along_a_cosine_as_in_each_reference(name, ahead, step):
    """MoCo v3's teacher moves before a step, with its momentum; BYOL's and DINO's after it."""
    method = make(name, momentum=0.5, momentum_end=0.9)
    before = [p.clone() for p in method.teacher.net.parameters()]
    for p in method.student.parameters():
        p.data += 1.0
    method.after_step(moment(step), method(views(method), moment(step)))
    momentum = 0.9 - 0.4 * (1 + math.cos(math.pi * (step + ahead) / TOTAL)) / 2
    for new, old, student in zip(
        method.teacher.net.parameters(), before, method.student.parameters(), strict=True
    ):
        torch.testing.assert_close(new, momentum * old + (1 - momentum) * student)


@pytest.mark.parametrize("temperature", [0.2, 1.0])
def test_equal_embeddings_lose_at_chance_which_is_infonce_times_its_scale(temperature):
    method = make("mocov3", temperature=temperature)
    for p in method.parameters():
        p.data.zero_()
    loss, chance = method(views(method), moment()).loss.item(), method.config.chance_loss(8)
    assert loss == pytest.approx(chance) == method.config.info_nce_scale * math.log(8)


def test_without_a_predictor_the_embeddings_are_the_queries():
    method = make("mocov3", predictor=False, temperature=0.5).double()
    x = views(method, dtype=torch.float64)
    q, k = ([F.normalize(net(v)[1], dim=1) for v in x] for net in (method.student, method.teacher))
    own = torch.arange(len(x[0]))
    directions = (q[0] @ k[1].T, q[1] @ k[0].T)
    expected = sum(F.cross_entropy(logits / 0.5, own) for logits in directions)
    torch.testing.assert_close(method(x, moment()).loss, 2 * 0.5 * expected)
    assert not list(method.predictor.parameters())


@pytest.mark.parametrize("name", ["vit_bn_s16", "vit_s16"])
def test_only_vit_bn_has_batch_norm_in_the_backbone(name):
    with torch.device("meta"):
        network = BackboneConfig(name=name).build()
    count = sum(isinstance(m, BatchNorm) for m in network.modules())
    assert count == (12 if name == "vit_bn_s16" else 0)


def test_a_step_trains_a_vit_and_leaves_its_patch_projection():
    torch.manual_seed(0)
    network = ViT(24, 2, 3, patch=4, image_size=16, mlp_norm="bn")
    method = MoCoV3Config(head="vit", temperature=0.2, dim=8, hidden_dim=16).build(network)
    method(views(method), moment()).loss.backward()
    silent = {n for n, p in method.student.named_parameters() if p.grad is None}
    assert silent == {"backbone.patch_embed.proj.weight", "backbone.patch_embed.proj.bias"}
