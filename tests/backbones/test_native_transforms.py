"""What timm and torchvision do to an image before their networks, against their own transforms."""

import numpy as np
import pytest
import timm
import torch
import torchvision
from PIL import Image
from timm.data import create_transform, resolve_data_config

from selfsight.backbones import from_timm, from_torchvision
from selfsight.backbones.foreign_checkpoints.load_backbone import load_backbone
from selfsight.data.eval_transform import MEAN, STD
from selfsight.errors import UserError

# Width and height: larger than the resized image, smaller, and so nearly in between.
SIZES = [(560, 421), (180, 260), (251, 224)]


def photo(width, height):
    """Waves and noise: neither smooth nor flat."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:height, :width]
    waves = [127 + 100 * np.sin(x / a) * np.cos(y / b) for a, b in ((7, 11), (3, 30), (19, 5))]
    pixels = np.stack(waves, axis=2) + rng.normal(0, 20, (height, width, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def check_equal(native, image, theirs):
    """Within one gray level; Pillow's bicubic, if it enlarges, differs by two in single values."""
    ours = native(image)
    assert ours.shape == theirs.shape
    levels = ((ours - theirs).abs() * torch.tensor(native.std)[:, None, None] * 255).round()
    enlarges = native.interpolation == "bicubic" and min(image.size) < native.resize
    assert levels.max() <= 1 + enlarges
    assert (levels > 1).float().mean() < 1e-4


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("vit_base_patch16_224.augreg2_in21k_ft_in1k", None),  # bicubic, 0.9, mean 0.5
        ("resnet50.a1_in1k", None),  # bicubic, 0.95
        ("resnet18.tv_in1k", None),  # bilinear, 0.875
        ("coat_lite_medium_384.in1k", None),  # squashed
        ("vit_base_patch16_224.augreg2_in21k_ft_in1k", 192),
    ],
)
def test_timm_s_transform_is_ours_to_one_gray_level(name, size):
    arguments = {} if size is None else {"img_size": size}
    config = resolve_data_config(arguments, pretrained_cfg=timm.get_pretrained_cfg(name).to_dict())
    native = from_timm.published_transform(name, size)["native"]
    for width, height in SIZES:
        image = photo(width, height)
        check_equal(native, image, create_transform(**config)(image))


@pytest.mark.parametrize("name", ["resnet50", "vit_b_16", "swin_t", "efficientnet_b0"])
def test_torchvision_s_transform_is_ours_to_one_gray_level(name):
    preset = torchvision.models.get_model_weights(name).DEFAULT.transforms()
    native = from_torchvision.published_transform(name)["native"]
    for width, height in SIZES:
        image = photo(width, height)
        check_equal(native, image, preset(image))


@pytest.mark.slow
def test_every_published_model_of_timm_has_a_transform_but_those_that_pad_or_are_not_square():
    without = set()
    for name in timm.list_models(pretrained=True):
        about = from_timm.published_transform(name)
        if "native" not in about:
            without.add(name)
            continue
        cfg = timm.get_pretrained_cfg(name)
        assert (about["mean"], about["native"].interpolation) == (cfg.mean, cfg.interpolation), name
    configs = {name: timm.get_pretrained_cfg(name) for name in without}
    for name, cfg in configs.items():
        pads = cfg.crop_mode == "border" or cfg.crop_pct > 1
        assert pads or cfg.input_size[1] != cfg.input_size[2], name
    assert len(without) < 40


def test_a_file_in_timm_s_network_has_the_statistics_of_timm_or_of_its_project(tmp_path):
    name = "tf_mobilenetv3_small_minimal_100"
    weights = timm.create_model(name).state_dict()
    torch.save(weights, tmp_path / "timm.pth")
    report = load_backbone(f"timm:{name}={tmp_path / 'timm.pth'}")[1]
    assert (report.image_size, report.mean, report.std) == (224, (0.5,) * 3, (0.5,) * 3)
    assert report.native.mean == (0.5,) * 3 and report.native.interpolation == "bilinear"
    moco = {f"module.encoder_q.{k}": v for k, v in weights.items()}
    torch.save({"state_dict": moco}, tmp_path / "moco.pth")
    report = load_backbone(f"timm:{name}={tmp_path / 'moco.pth'}", image_size=96)[1]
    assert (report.image_size, report.mean, report.std) == (96, MEAN, STD)
    assert (report.native.mean, report.native.size, report.native.resize) == (MEAN, 96, 109)


def test_a_file_in_timm_s_vit_is_encoded_at_another_size_as_timm_does(tmp_path):
    theirs = timm.create_model("test_vit", num_classes=0).eval()  # of 160 pixels
    torch.save(theirs.state_dict(), tmp_path / "vit.pth")
    spec, x = f"timm:test_vit={tmp_path / 'vit.pth'}", torch.randn(2, 3, 96, 96)
    ours = load_backbone(spec, image_size=96)[0]
    theirs.set_input_size(96)
    torch.testing.assert_close(ours(x), theirs(x))
    torch.save(theirs.state_dict(), tmp_path / "vit.pth")  # a file that was trained at that size
    torch.testing.assert_close(load_backbone(spec, image_size=96)[0](x), theirs(x))
    with pytest.raises(UserError, match="pos_embed is"):
        load_backbone(spec)
    torch.save(theirs.state_dict() | {"pos_embed": torch.zeros(1, 30, 64)}, tmp_path / "vit.pth")
    with pytest.raises(UserError, match="pos_embed is"):
        load_backbone(spec, image_size=96)
