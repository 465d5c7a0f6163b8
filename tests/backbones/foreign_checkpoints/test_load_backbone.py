"""Each project's names around a network of torchvision or timm, which must come out the same."""

import argparse
import json
import pathlib
import re
import time

import pytest
import timm
import torch
import torchvision
from huggingface_hub import constants
from safetensors.torch import save_file
from torch import nn
from torchvision.models.resnet import BasicBlock

from selfsight.backbones import BackboneConfig
from selfsight.backbones.foreign_checkpoints.infer_network import infer_network
from selfsight.backbones.foreign_checkpoints.load_backbone import load_backbone
from selfsight.backbones.foreign_checkpoints.weight_names import flatten
from selfsight.backbones.vit import ViT
from selfsight.data.eval_transform import MEAN, STD
from selfsight.errors import UserError


def drawn(network, seed=0):
    """Weights and running statistics that no constructor would give."""
    g = torch.Generator().manual_seed(seed)
    for name, value in network.state_dict().items():
        if value.is_floating_point():
            value.copy_(torch.randn(value.shape, generator=g) * 0.05 + ("running_var" in name))
    return network.eval()


class Narrow(torchvision.models.resnet.ResNet):
    """torchvision's, with a quarter of its channels."""

    def __init__(self, depth=1):
        super().__init__(BasicBlock, [depth] * 4)
        self.fc = nn.Linear(128, 3)

    def _make_layer(self, block, planes, *args, **settings):
        if planes == 64:
            self.inplanes = 16
            self.conv1 = nn.Conv2d(3, 16, 7, stride=2, padding=3, bias=False)
            self.bn1 = nn.BatchNorm2d(16)
        return super()._make_layer(block, planes // 4, *args, **settings)


def resnet(seed=0):
    return drawn(Narrow(), seed)


def under(prefix, weights):
    return {prefix + name: value for name, value in weights.items()}


def numbered(network):
    """As nn.Sequential of the children numbers them."""
    return nn.Sequential(*list(network.children())[:-1]).state_dict()


def bare(network):
    return {k: v for k, v in network.state_dict().items() if not k.startswith("fc.")}


HEAD = {"0.weight": torch.ones(4, 512), "0.bias": torch.ones(4), "2.weight": torch.ones(2, 4)}
NET, OTHER = resnet(0), resnet(1)
SGD = {"state": {0: {"momentum_buffer": torch.zeros(3)}}, "param_groups": [{"lr": 0.1}]}


def moco():
    q = under("module.encoder_q.", bare(NET) | under("fc.", HEAD))
    k = under("module.encoder_k.", bare(OTHER) | under("fc.", HEAD))
    queue = {"module.queue": torch.zeros(8, 16), "module.queue_ptr": torch.zeros(1)}
    return {"epoch": 200, "arch": "resnet50", "state_dict": q | k | queue, "optimizer": SGD}


def mocov3():
    base = under("module.base_encoder.", bare(NET) | under("fc.", HEAD))
    momentum = under("module.momentum_encoder.", bare(OTHER) | under("fc.", HEAD))
    rest = under("module.predictor.", HEAD)
    return {"state_dict": base | momentum | rest, "optimizer": SGD, "scaler": {"scale": 2.0}}


def simsiam():
    encoder = under("module.encoder.", bare(NET) | under("fc.", HEAD))
    return {"state_dict": encoder | under("module.predictor.", HEAD), "optimizer": SGD}


def byol_of_two_networks():
    """Numbered parts, with the projector's name as that port spells it."""
    online = under("encoder.", numbered(NET)) | under("projetion.net.", HEAD)
    target = under("encoder.", numbered(OTHER)) | under("projetion.net.", HEAD)
    return {
        "online_network_state_dict": online,
        "target_network_state_dict": target,
        "optimizer_state_dict": SGD,
    }


def byol_of_a_learner():
    online = under("online_encoder.net.", NET.state_dict())
    target = under("target_encoder.net.", OTHER.state_dict())
    rest = under("online_predictor.net.", HEAD) | under("online_encoder.projector.", HEAD)
    return {"state_dict": under("learner.", online | target | rest)}


def byol_of_a_backbone():
    return {
        "online_backbone": under("module.", bare(NET)),
        "target_backbone": under("module.", bare(OTHER)),
    }


def swav():
    head = under("module.projection_head.", HEAD)
    prototypes = {"module.prototypes.weight": torch.ones(5, 2)}
    return {"state_dict": under("module.", bare(NET)) | head | prototypes, "optimizer": SGD}


def barlow_twins():
    norm = {"module.bn.running_mean": torch.zeros(4), "module.bn.running_var": torch.ones(4)}
    model = under("module.backbone.", bare(NET)) | under("module.projector.", HEAD) | norm
    return {"epoch": 1000, "model": model, "optimizer": SGD}


def vicreg():
    model = under("module.backbone.", bare(NET)) | under("module.projector.", HEAD)
    return {"epoch": 1000, "model": model, "optimizer": SGD}


def fast_moco():
    """The encoder lists the backbone again, and the teacher too."""
    own = under("backbone.", numbered(NET)) | under("encoder.0.", numbered(NET))
    ema = under("bbone_ema.", numbered(OTHER)) | under("encoder_ema.0.", numbered(OTHER))
    heads = {
        "encoder.1.linear1.weight": torch.ones(4, 512),
        "encoder_ema.1.bn1.bias": torch.ones(4),
    }
    predictor = {"predictor.layer2.weight": torch.ones(4, 4)}
    return {"model": under("module.", own | ema | heads | predictor), "last_iter": 3}


def dino():
    """The weights that DINO evaluates are its teacher's."""
    teacher = under("backbone.", bare(NET)) | under("head.mlp.", HEAD)
    student = under("module.backbone.", bare(OTHER)) | under("module.head.mlp.", HEAD)
    loss = {"center": torch.zeros(1, 4)}
    settings = argparse.Namespace(arch="resnet50")
    return {"teacher": teacher, "student": student, "dino_loss": loss, "args": settings}


def lightly():
    own, other = under("backbone.", numbered(NET)), under("backbone_momentum.", numbered(OTHER))
    heads = under("projection_head.layers.", HEAD) | under("prediction_head.layers.", HEAD)
    return {"state_dict": own | other | heads, "epoch": 3}


def solo_learn():
    own, other = under("backbone.", bare(NET)), under("momentum_backbone.", bare(OTHER))
    heads = under("projector.", HEAD) | {"classifier.weight": torch.ones(3, 512)}
    return {"state_dict": own | other | heads | {"queue": torch.zeros(2, 8, 4)}}


def solo_learn_cifar(prefix="backbone.", net=None):
    """The ResNet of its CIFAR-10 and CIFAR-100 runs; its classifier shows which."""
    net = net or Narrow()
    net.conv1 = nn.Conv2d(3, net.inplanes // 8, kernel_size=3, stride=1, padding=2, bias=False)
    net.maxpool = nn.Identity()
    net = drawn(net)
    heads = under("projector.", HEAD) | {"classifier.weight": torch.ones(100, 512)}
    return net, {"state_dict": under(prefix, bare(net)) | heads}


def vissl():
    trunk = under("trunk._feature_blocks.", bare(NET))
    heads = {"heads": under("0.clf.", HEAD)}
    return {"classy_state_dict": {"base_model": {"model": trunk | heads}}}


FILES = {
    "MoCo v1, MoCo v2 or JCL": (moco, {"momentum encoder", "head", "queue of keys", "optimizer"}),
    "MoCo v3": (mocov3, {"momentum encoder", "head", "optimizer"}),
    "SimSiam": (simsiam, {"head", "optimizer"}),
    "BYOL": (byol_of_two_networks, {"momentum encoder", "head", "optimizer"}),
    "BYOL, a learner": (byol_of_a_learner, {"momentum encoder", "head"}),
    "BYOL, a backbone": (byol_of_a_backbone, {"momentum encoder"}),
    "SwAV": (swav, {"head", "optimizer"}),
    "Barlow Twins": (barlow_twins, {"head", "not of the backbone", "optimizer"}),
    "VICReg": (vicreg, {"head", "optimizer"}),
    "Fast-MoCo": (fast_moco, {"momentum encoder", "the same weights again"}),
    "DINO": (dino, {"head", "another encoder", "not of the backbone"}),
    "solo-learn, Lightly or similar": (lightly, {"momentum encoder", "head"}),
    "solo-learn, Lightly or similar, plain": (solo_learn, {"momentum encoder", "head"}),
    "VISSL": (vissl, {"head"}),
}


def images(size=64):
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(2))


@torch.no_grad()
def features(network, x):
    network = nn.Sequential(*list(network.children())[:-1], nn.Flatten())
    return network(x)


@pytest.mark.parametrize("name", FILES)
def test_a_project_s_checkpoint_gives_the_network_s_features(name, tmp_path):
    """And every name of the file is in the report once."""
    made, reasons = FILES[name]
    torch.save(made(), tmp_path / "checkpoint.pth.tar")
    backbone, report = load_backbone(str(tmp_path / "checkpoint.pth.tar"))
    x = images()
    torch.testing.assert_close(backbone(x), features(NET, x), rtol=1e-5, atol=1e-5)
    assert not backbone.training
    assert name.startswith(report.writer) and report.writer
    assert reasons <= {why for _, why in report.unused}
    assert (report.mean, report.std) == (MEAN, STD)
    rows = report.table()
    assert sorted(row["file"] for row in rows if row["file"]) == sorted(flatten(made()))
    assert sorted(row["network"] for row in rows if row["network"]) == sorted(backbone.state_dict())
    assert all(row["reason"] for row in rows if row["status"] in ("unused", "missing"))
    assert f"{len(report.renamed)} renamed" in report.summary()


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_plain_file_of_torchvision_names_lands_in_our_resnet(suffix, tmp_path):
    """As Barlow Twins and VICReg publish theirs."""
    path = tmp_path / f"resnet{suffix}"
    save_file(NET.state_dict(), path) if suffix == ".safetensors" else torch.save(
        NET.state_dict(), path
    )
    backbone, report = load_backbone(str(path))
    torch.testing.assert_close(backbone(images()), features(NET, images()))
    assert set(report.matched) == set(backbone.state_dict())
    assert sorted(report.unused) == [("fc.bias", "head"), ("fc.weight", "head")]
    assert report.mean is None  # nobody says so


def test_half_precision_weights_rise_to_float32(tmp_path):
    torch.save({k: v.half() for k, v in bare(NET).items()}, tmp_path / "half.pth")
    backbone, _ = load_backbone(str(tmp_path / "half.pth"))
    assert backbone.conv1.weight.dtype == torch.float32
    assert torch.equal(backbone.conv1.weight, NET.conv1.weight.half().float())


def test_counters_may_be_missing_and_nothing_else(tmp_path):
    """Files from before torch 0.4.1 have no counters."""
    old = {k: v for k, v in bare(NET).items() if not k.endswith("num_batches_tracked")}
    torch.save(old, tmp_path / "old.pth")
    backbone, report = load_backbone(str(tmp_path / "old.pth"))
    torch.testing.assert_close(backbone(images()), features(NET, images()))
    assert len(report.missing) == len(bare(NET)) - len(old)
    del old["layer3.0.bn2.bias"]
    torch.save(old, tmp_path / "part.pth")
    with pytest.raises(UserError, match=r"lacks 1 weights of .*: layer3.0.bn2.bias"):
        load_backbone(str(tmp_path / "part.pth"))


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_weight_that_is_not_finite_is_refused_by_name(number, tmp_path):
    broken = {k: v.clone() for k, v in bare(NET).items()}
    broken["layer2.0.bn1.running_var"][3] = number
    torch.save(under("module.encoder_q.", broken), tmp_path / "nan.pth")
    message = r"in 1 weights: module.encoder_q.layer2.0.bn1.running_var \(1 of 32 numbers\)"
    with pytest.raises(UserError, match=message):
        load_backbone(str(tmp_path / "nan.pth"))
    torch.save(bare(NET) | {"conv1.weight": NET.conv1.weight.double() * 1e300}, tmp_path / "d.pth")
    with pytest.raises(UserError, match=r"conv1.weight \("):  # infinite as float32
        load_backbone(str(tmp_path / "d.pth"))


def test_a_file_that_lacks_a_whole_block_is_no_smaller_network(tmp_path):
    net = Narrow(depth=2)
    part = {k: v for k, v in net.state_dict().items() if not k.startswith("layer3.1.")}
    torch.save(under("module.encoder_q.", part), tmp_path / "part.pth")
    with pytest.raises(UserError, match=r"2, 2, 1 and 2 blocks.*may be missing"):
        load_backbone(str(tmp_path / "part.pth"))
    with pytest.raises(UserError, match=r"lacks 10 weights.*NETWORK=/\S+part.pth$"):
        load_backbone(f"resnet18={tmp_path / 'part.pth'}")


def test_a_vit_that_lacks_its_last_block_is_no_smaller_network(tmp_path):
    ours = ViT(192, 11, 3, patch=8, image_size=32)
    torch.save(ours.state_dict(), tmp_path / "vit.pth")
    with pytest.raises(UserError, match="width 192 with 11 blocks instead of 12"):
        load_backbone(str(tmp_path / "vit.pth"))


def test_a_weight_without_a_place_is_refused(tmp_path):
    torch.save(bare(NET) | {"layer2.0.se.fc.weight": torch.ones(3)}, tmp_path / "se.pth")
    with pytest.raises(UserError, match=r"does not have: layer2.0.se.fc.weight"):
        load_backbone(str(tmp_path / "se.pth"))


@pytest.mark.slow
def test_a_network_of_other_shapes_is_refused_and_its_name_helps(tmp_path):
    net = drawn(torchvision.models.resnext50_32x4d(num_classes=3))
    path = tmp_path / "resnext.pth"
    torch.save(under("module.", net.state_dict()), path)
    with pytest.raises(
        UserError, match=r"other shapes: layer1.0.conv1.weight is \(128, 64, 1, 1\)"
    ):
        load_backbone(str(path))
    backbone, report = load_backbone(f"torchvision:resnext50_32x4d={path}")
    torch.testing.assert_close(backbone(images()), features(net, images()))
    assert report.network == "torchvision:resnext50_32x4d" and backbone.dim == 2048


def test_two_students_are_a_question_that_part_answers(tmp_path):
    path = tmp_path / "two.pth"
    torch.save(under("left.", bare(NET)) | under("right.", bare(OTHER)), path)
    with pytest.raises(UserError, match=r"several encoders.*'left.', 'right.'.*--part left"):
        load_backbone(str(path))
    backbone, _ = load_backbone(str(path), part="right")
    torch.testing.assert_close(backbone(images()), features(OTHER, images()))
    with pytest.raises(UserError, match=r'no encoder "rigth".*"right\."'):
        load_backbone(str(path), part="rigth")


def test_the_teacher_may_be_asked_for(tmp_path):
    torch.save(moco(), tmp_path / "moco.pth")
    backbone, _ = load_backbone(str(tmp_path / "moco.pth"), part="encoder_k")
    torch.testing.assert_close(backbone(images()), features(OTHER, images()))


@pytest.mark.parametrize("prefix", ["backbone.", "encoder."])
def test_solo_learn_s_resnet_for_cifar_has_padding_2(prefix, tmp_path):
    net, file = solo_learn_cifar(prefix)
    torch.save(file, tmp_path / "solo.ckpt")
    x, path = images(32), str(tmp_path / "solo.ckpt")
    backbone, report = load_backbone(path)
    torch.testing.assert_close(backbone(x), features(net, x), rtol=1e-6, atol=1e-6)
    assert (report.writer, report.image_size) == ("solo-learn", 32)
    assert report.mean == (0.5071, 0.4865, 0.4409)  # of CIFAR-100 in its data loader
    assert "padding 2" in report.summary()
    other, report = load_backbone(path, stem="lowres")
    net.conv1.padding = (1, 1)
    torch.testing.assert_close(other(x), features(net, x), rtol=1e-6, atol=1e-6)
    assert not report.notes


@pytest.mark.slow
def test_naming_solo_learn_s_network_changes_nothing(tmp_path):
    net, file = solo_learn_cifar(net=torchvision.models.resnet18())
    torch.save(file, tmp_path / "solo.ckpt")
    backbone, report = load_backbone(f"resnet18={tmp_path / 'solo.ckpt'}", image_size=32)
    torch.testing.assert_close(backbone(images(32)), features(net, images(32)))
    assert "padding 2" in report.summary()


def test_a_stem_can_be_given_where_names_do_not_show_it(tmp_path):
    net, _ = solo_learn_cifar()
    torch.save(bare(net), tmp_path / "bare.pth")
    x, path = images(32), str(tmp_path / "bare.pth")
    assert "--stem lowres_pad2" in load_backbone(path)[1].summary()
    backbone, _ = load_backbone(path, stem="lowres_pad2")
    torch.testing.assert_close(backbone(x), features(net, x), rtol=1e-6, atol=1e-6)
    with pytest.raises(UserError, match=r"is 3 x 3, as in lowres or half or lowres_pad2"):
        load_backbone(path, stem="imagenet")
    with pytest.raises(UserError, match=r'Did you mean "lowres"'):
        load_backbone(path, stem="lowers")
    with pytest.raises(UserError, match="states its own"):
        load_backbone("timm:resnet18", stem="lowres")


def test_names_of_small_image_resnets_are_known(tmp_path):
    """A first convolution of 3 x 3, and shortcuts called so."""
    ours = drawn(BackboneConfig(name="resnet10_narrow", stem="lowres").build())
    renamed = {k.replace("downsample", "shortcut"): v for k, v in ours.state_dict().items()}
    torch.save(renamed | {"linear.weight": torch.ones(10, 128)}, tmp_path / "cifar.pth")
    backbone, report = load_backbone(str(tmp_path / "cifar.pth"))
    torch.testing.assert_close(backbone(images(32)), ours(images(32)))
    assert report.network == "resnet10_narrow" and "3 x 3" in report.summary()


def test_mocov3_s_vit_lands_in_ours_and_its_positions_are_ours(tmp_path):
    ours = ViT(128, 2, 2, patch=8, image_size=32)
    with torch.no_grad():
        for p in ours.parameters():
            p.normal_(std=0.1)
    saved = ours.state_dict() | {"pos_embed": ours.pos_embed} | under("head.", HEAD)
    file = under("module.base_encoder.", saved) | under("module.momentum_encoder.", saved)
    torch.save({"state_dict": file}, tmp_path / "vit.pth.tar")
    backbone, report = load_backbone(str(tmp_path / "vit.pth.tar"))
    assert isinstance(backbone, ViT) and report.image_size == 32
    torch.testing.assert_close(backbone(images(32)), ours.eval()(images(32)))
    assert ("state_dict.module.base_encoder.pos_embed", "pos_embed") in report.renamed
    assert "sines and cosines" in report.summary()
    larger, report = load_backbone(str(tmp_path / "vit.pth.tar"), image_size=64)
    torch.testing.assert_close(larger(images(64)), ours(images(64)))
    assert report.image_size == 64


def learned_vit(**settings):
    made = timm.models.vision_transformer.VisionTransformer(
        img_size=32, patch_size=8, embed_dim=128, depth=2, num_heads=2, num_classes=5, **settings
    )
    return drawn(made)


@pytest.mark.parametrize("settings", [{}, {"init_values": 0.1}, {"qkv_bias": False}])
def test_a_vit_with_learned_positions_lands_in_timm_s(settings, tmp_path):
    net = learned_vit(**settings)
    torch.save({"teacher": under("backbone.", net.state_dict())}, tmp_path / "vit.pth")
    backbone, report = load_backbone(str(tmp_path / "vit.pth"))
    expected = net.forward_head(net.forward_features(images(32)), pre_logits=True)
    torch.testing.assert_close(backbone(images(32)), expected)
    assert report.network == "ViT 128 wide" and backbone.dim == 128
    assert backbone(images(48)).shape == (2, 128)  # positions are resized
    with pytest.raises(UserError, match="36 pixels do not divide into patches of 8"):
        backbone(images(36))


def as_dinov2(net):
    """The same network in the names of DINOv2's repository, which gives the class a position."""
    weights, position = net.state_dict(), torch.randn(1, 1, net.embed_dim)
    file = {
        "cls_token": weights.pop("cls_token") - position,
        "pos_embed": torch.cat([position, weights.pop("pos_embed")], dim=1),
        "register_tokens": weights.pop("reg_token"),
        "mask_token": torch.zeros(1, net.embed_dim),
    }
    if isinstance(net.blocks[0].mlp, timm.layers.GluMlp):
        new = {"mlp.fc1": "mlp.w12", "mlp.fc2": "mlp.w3"}
        weights = {re.sub("mlp.fc[12]", lambda m: new[m[0]], k): v for k, v in weights.items()}
    return file | weights


def in_chunks(file):
    """As DINOv2's training saves them: a block keeps its number in its chunk."""
    return {
        "teacher": {
            "backbone." + re.sub(r"^blocks\.(\d+)\.", r"blocks.\1.\1.", name): value
            for name, value in file.items()
        }
    }


REGISTERS = {"reg_tokens": 4, "no_embed_class": True, "init_values": 1e-5}
GATED = {"mlp_layer": timm.layers.SwiGLUPacked, "act_layer": nn.SiLU, "mlp_ratio": 16 / 3}


@pytest.mark.parametrize(
    ("layout", "settings"),
    [
        (lambda net: net.state_dict(), {}),
        (lambda net: net.state_dict(), {"no_embed_class": False}),
        (as_dinov2, {}),
        (as_dinov2, GATED),
        (lambda net: in_chunks(as_dinov2(net)), {}),
    ],
)
def test_dinov2_with_registers_gives_timm_s_features(layout, settings, tmp_path):
    net = learned_vit(**REGISTERS | settings)
    file = layout(net)
    torch.save(file, tmp_path / "dinov2.pth")
    backbone, report = load_backbone(str(tmp_path / "dinov2.pth"))
    expected = net.forward_head(net.forward_features(images(32)), pre_logits=True)
    torch.testing.assert_close(backbone(images(32)), expected, rtol=1e-6, atol=1e-6)
    assert report.network == "ViT 128 wide with 4 registers" and report.image_size == 32
    if net.no_embed_class:  # at another size, where positions of patches alone are resized
        other, _ = load_backbone(str(tmp_path / "dinov2.pth"), image_size=48)
        net.set_input_size((48, 48))
        expected = net.forward_head(net.forward_features(images(48)), pre_logits=True)
        torch.testing.assert_close(other(images(48)), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_timm_s_network_takes_a_file_of_dinov2_with_registers(tmp_path):
    name = "vit_small_patch14_reg4_dinov2"
    net = drawn(timm.create_model(name, img_size=28, num_classes=0))
    torch.save(as_dinov2(net), tmp_path / "dinov2.pth")
    backbone, _ = load_backbone(f"timm:{name}={tmp_path / 'dinov2.pth'}", image_size=28)
    torch.testing.assert_close(backbone(images(28)), net(images(28)), rtol=1e-6, atol=1e-6)


def test_torchvision_s_vit_has_other_names_and_the_same_features(tmp_path):
    net = drawn(
        torchvision.models.VisionTransformer(
            image_size=32, patch_size=8, num_layers=2, num_heads=2, hidden_dim=128, mlp_dim=512
        )
    )
    torch.save(net.state_dict(), tmp_path / "vit.pth")
    backbone, report = load_backbone(str(tmp_path / "vit.pth"))
    net.heads = nn.Identity()
    torch.testing.assert_close(backbone(images(32)), net(images(32)), rtol=1e-4, atol=1e-5)
    assert ("encoder.layers.encoder_layer_1.ln_2.bias", "blocks.1.norm2.bias") in report.renamed


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (torchvision.models.resnet18, "resnet18"),
        (torchvision.models.resnet34, "resnet34"),
        (torchvision.models.resnet50, "resnet50"),
        (torchvision.models.resnet101, "resnet101"),
        (BackboneConfig(name="resnet50x2").build, "resnet50x2"),
        (BackboneConfig(name="resnet50x4").build, "resnet50x4"),
        (BackboneConfig(name="vit_s16").build, "vit_s16"),
        (BackboneConfig(name="vit_b16").build, "vit_b16"),
        (BackboneConfig(name="vit_l7").build, "vit_l7"),
        (BackboneConfig(name="vit_h14").build, "vit_h14"),
        (BackboneConfig(name="vit_bn_s16").build, "vit_bn_s16"),
    ],
)
def test_shapes_alone_tell_the_architecture(make, name, monkeypatch):
    for method in ("normal_", "uniform_"):  # drawing weights that are not there takes longest
        monkeypatch.setattr(torch.Tensor, method, lambda x, *_, **__: x)
    with torch.device("meta"):
        weights = make().state_dict()
        network, facts, _ = infer_network("file", weights, None)
    assert facts["network"] == name
    shapes = {k: v.shape for k, v in network.state_dict().items()}
    assert shapes == {k: v.shape for k, v in weights.items() if not k.startswith("fc.")}


def test_a_named_timm_network_takes_a_file(tmp_path):
    net = drawn(timm.create_model("mobilenetv3_small_050", num_classes=4))
    path = tmp_path / "mobile.safetensors"
    save_file(under("backbone.", net.state_dict()), path)
    backbone, report = load_backbone(f"timm:mobilenetv3_small_050={path}")
    expected = net.forward_head(net.forward_features(images()), pre_logits=True)
    torch.testing.assert_close(backbone(images()), expected)
    assert {why for _, why in report.unused} == {"head"}


def cached_by_hub(folder, name, net, monkeypatch):
    """Weights where huggingface_hub keeps what it has fetched; nothing is fetched."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    repository = timm.get_pretrained_cfg(name).hf_hub_id
    cache = folder / f"models--{repository.replace('/', '--')}"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs/main").write_text("0" * 40)
    (cache / "snapshots" / ("0" * 40)).mkdir(parents=True)
    save_file(net.state_dict(), cache / "snapshots" / ("0" * 40) / "model.safetensors")


def test_timm_s_published_weights_are_loaded_by_timm(tmp_path, monkeypatch):
    name = "mobilenetv3_small_050"
    net = drawn(timm.create_model(name))
    cached_by_hub(tmp_path, name, net, monkeypatch)
    backbone, report = load_backbone(f"timm:{name}")
    expected = net.forward_head(net.forward_features(images()), pre_logits=True)
    torch.testing.assert_close(backbone(images()), expected)
    assert report.image_size == 224 and len(report.mean) == 3
    assert report.matched and not report.unused
    assert load_backbone(f"timm:{name}", image_size=64)[1].image_size == 64


def test_without_a_network_timm_s_weights_are_a_sentence_at_once(tmp_path, monkeypatch):
    """huggingface_hub tries six times, with pauses of 1 to 8 seconds."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    start = time.monotonic()
    with pytest.raises(UserError, match=r"127.0.0.1:9/timm/resnet18.*refused.*timm:resnet18=FILE"):
        load_backbone("timm:resnet18")
    assert time.monotonic() - start < 5
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"not on this machine.*timm:resnet18=FILE"):
        load_backbone("timm:resnet18")
    monkeypatch.setattr(timm, "get_pretrained_cfg", lambda _: None)
    with pytest.raises(UserError, match="has no published weights for resnet10t"):
        load_backbone("timm:resnet10t")


def test_torchvision_s_published_weights_land_in_our_resnet(tmp_path, monkeypatch):
    """From where torch keeps what it has fetched."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    (tmp_path / "hub/checkpoints").mkdir(parents=True)
    with torch.device("meta"):
        net = torchvision.models.resnet18()
    net = drawn(net.to_empty(device="cpu"))
    url = torchvision.models.get_model_weights("resnet18").DEFAULT.url
    torch.save(net.state_dict(), tmp_path / "hub/checkpoints" / url.rsplit("/")[-1])
    backbone, report = load_backbone("torchvision:resnet18")
    torch.testing.assert_close(backbone(images()), features(net, images()))
    assert report.network == "resnet18" and report.writer == "torchvision"
    assert (report.image_size, report.mean, report.std) == (224, MEAN, STD)


@pytest.mark.parametrize(
    ("name", "dim"),
    [
        ("mobilenet_v3_small", 1024),
        pytest.param("swin_t", 768, marks=pytest.mark.slow),
        pytest.param("googlenet", 1024, marks=pytest.mark.slow),
    ],
)
def test_a_torchvision_classifier_gives_what_its_last_layer_reads(name, dim, tmp_path):
    with torch.device("meta"):
        net = torchvision.models.get_model(
            name, **({"init_weights": False} if name == "googlenet" else {})
        )
    last = [m for m in net.modules() if isinstance(m, nn.Linear)][-1]
    shapes = net.state_dict().items()
    weights = {k: torch.full(v.shape, 0.01).to(v.dtype) for k, v in shapes}
    torch.save(weights, tmp_path / "w.pth")
    backbone, _ = load_backbone(f"torchvision:{name}={tmp_path / 'w.pth'}")
    assert backbone(images()).shape == (2, dim)
    assert dim == last.in_features


@pytest.mark.slow
@pytest.mark.parametrize("name", ["googlenet", "inception_v3"])
def test_a_network_that_changes_the_statistics_does_so_here(name, monkeypatch):
    """torchvision decides it by whether it loads published weights."""
    net = torchvision.models.get_model(name, init_weights=False)
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)  # so that the input reaches the features
    weights = net.state_dict()
    monkeypatch.setattr(torchvision.models.WeightsEnum, "get_state_dict", lambda *_, **__: weights)
    theirs = torchvision.models.get_model(name, weights="DEFAULT").eval()
    theirs.fc = nn.Identity()
    backbone, _ = load_backbone(f"torchvision:{name}")
    torch.testing.assert_close(backbone(images(96)), theirs(images(96)))


def test_weights_that_cannot_be_fetched_are_a_sentence(tmp_path, monkeypatch):
    def no_network(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "download_url_to_file", no_network)
    with pytest.raises(UserError, match=r"could not be fetched \(no route to host\).*=FILE"):
        load_backbone("torchvision:resnet18")


def test_a_run_folder_gives_its_student(tmp_path):
    config = BackboneConfig(name="resnet8_narrow", image_size=32)
    student = drawn(config.build())
    view = {"size": 32, "mean": [0.5], "std": [0.2]}
    backbone_settings = {"name": "resnet8_narrow", "image_size": 32}
    recipe = {"method": {"name": "moco"}, "backbone": backbone_settings, "views": [view]}
    (tmp_path / "recipe.json").write_text(json.dumps(recipe))
    with pytest.raises(UserError, match="has no checkpoint yet"):
        load_backbone(str(tmp_path))
    teacher = drawn(config.build(), 1)
    method = under("student.backbone.", student.state_dict())
    method |= under("teacher.net.backbone.", teacher.state_dict())
    method |= under("student.projector.", HEAD) | {"queue.keys": torch.zeros(4, 4)}
    (tmp_path / "checkpoints").mkdir()
    torch.save({"method": method, "step": 7}, tmp_path / "checkpoints/last.pt")
    backbone, report = load_backbone(str(tmp_path))
    torch.testing.assert_close(backbone(images(32)), student(images(32)))
    assert (report.image_size, report.mean, report.std) == (32, (0.5,), (0.2,))
    assert {why for _, why in report.unused} >= {"momentum encoder", "head", "not a weight"}
    same, _ = load_backbone(str(tmp_path / "checkpoints/last.pt"))
    assert torch.equal(same(images(32)), backbone(images(32)))


def test_a_run_s_checkpoint_away_from_its_recipe_is_refused_where_shapes_do_not_tell(tmp_path):
    """Its stem may halve the image or not, and the weights are the same."""
    student = BackboneConfig(name="resnet8_narrow", image_size=32).build()
    method = under("student.backbone.", student.state_dict())
    torch.save({"method": method}, tmp_path / "last.pt")
    with pytest.raises(UserError, match="Give the run folder"):
        load_backbone(str(tmp_path / "last.pt"))


@pytest.mark.parametrize(
    ("part", "value", "named"),
    [
        ("views", [{"size": 32, "std": [0.2]}], "it has no views.0.mean"),
        ("views", [{"size": 32, "mean": [0.5], "std": "x"}], 'views.0.std is "x"'),
        ("views", [{"size": 32, "mean": [0.5, 0.5], "std": [0.2]}], "views.0.mean is (0.5, 0.5)"),
        ("views", [], "it has no views.0.size"),
        ("backbone", {"name": "resnet18", "depth": 9}, 'no setting "backbone.depth"'),
        ("method", {"norm": "gn"}, 'method.norm is "gn"; it must be one of bn, ln, ws'),
    ],
)
def test_a_damaged_recipe_is_named_by_the_full_path_of_its_setting(tmp_path, part, value, named):
    view = {"size": 32, "mean": [0.5], "std": [0.2]}
    recipe = {"method": {"name": "moco"}, "backbone": {"name": "resnet18"}, "views": [view]}
    (tmp_path / "recipe.json").write_text(json.dumps(recipe | {part: value}))
    with pytest.raises(UserError, match=re.escape(named)) as error:
        load_backbone(str(tmp_path))
    assert "recipe.json is damaged" in str(error.value)


def test_a_run_with_a_network_from_outside_is_opened_only_on_trust(tmp_path):
    settings = {"name": "tests.methods.small:Tiny", "image_size": 32}
    view = {"size": 32, "mean": [0.5], "std": [0.2]}
    recipe = {"method": {"name": "moco"}, "backbone": settings, "views": [view]}
    (tmp_path / "recipe.json").write_text(json.dumps(recipe))
    with pytest.raises(
        UserError, match=r'network "tests.methods.small:Tiny" from outside.*trust=True'
    ):
        load_backbone(str(tmp_path))


class Outsider:
    """Something that only running code could read."""


def test_a_file_with_code_in_it_is_read_only_on_trust(tmp_path):
    path = tmp_path / "code.pth"
    torch.save({"state_dict": bare(NET), "args": Outsider()}, path)
    with pytest.raises(UserError, match=r"more than weights \(.*Outsider.*\).*trust=True"):
        load_backbone(str(path))
    backbone, report = load_backbone(str(path), trust=True)
    torch.testing.assert_close(backbone(images()), features(NET, images()))
    assert ("args", "not a weight") in report.unused


def test_a_path_in_a_file_needs_no_trust_when_it_is_plain_settings(tmp_path):
    path = tmp_path / "settings.pth"
    torch.save({"model": bare(NET), "args": argparse.Namespace(lr=0.1)}, path)
    assert load_backbone(str(path))[1].unused == (("args", "not a weight"),)
    torch.save({"model": bare(NET), "args": pathlib.PurePosixPath("a")}, path)
    with pytest.raises(UserError, match="more than weights"):
        load_backbone(str(path))


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("resnet50", 'names a network without weights.*"torchvision:resnet50"'),
        ("nowhere.pth", "no file or run folder"),
        ("timm:resnet_50", 'has no model "resnet_50".*Did you mean'),
        ("torchvision:resnet5", 'no classifier "resnet5".*Did you mean "resnet50"'),
        ("resnet50=nowhere.pth", "There is no file nowhere.pth"),
    ],
)
def test_a_word_that_means_nothing_is_a_sentence(word, message):
    with pytest.raises(UserError, match=message):
        load_backbone(word)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("byol.pkl", b"x", "JAX"),
        ("broken.pth", b"not a file of weights", "more than weights|cannot be read"),
        ("broken.safetensors", b"x", "cannot be read as a file of weights"),
    ],
)
def test_a_file_that_cannot_be_read_is_a_sentence(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        load_backbone(str(tmp_path / name))


def test_a_file_without_a_known_network_asks_for_its_name(tmp_path):
    torch.save({"a.weight": torch.ones(2)}, tmp_path / "some.pth")
    with pytest.raises(UserError, match=r"no ResNet or ViT .* timm:NAME="):
        load_backbone(str(tmp_path / "some.pth"))
    with pytest.raises(UserError, match="no weights of resnet18"):
        load_backbone(f"resnet18={tmp_path / 'some.pth'}")
    with pytest.raises(UserError, match=r"it has no recipe\.json"):
        load_backbone(str(tmp_path))
