"""The printed lines for images that are not photographs, against our own transform."""

import functools

import numpy as np
import pytest
import torch

from selfsight.backbones.resnet import BasicBlock, ResNet
from selfsight.data.eval_transform import EvalTransform
from selfsight.errors import UserError
from selfsight.exporters.export_encoder import TARGETS, _check_images, describe_encoder, with_folder
from selfsight.options.encoder_options import ExportOptions
from tests.exporters.saved_run import shake


@functools.cache
def deep_encoder(dtype, channels):
    network = shake(ResNet(BasicBlock, (1, 1, 1, 1), width=64, in_channels=channels)).eval()
    low = tuple(float(100 * c) for c in range(channels))
    high = tuple(4000.0 + v for v in low)
    transform = EvalTransform(
        size=32,
        resize=36,
        channels=channels,
        dtype=dtype,
        low=low,
        high=high,
        mean=(0.4,) * channels,
        std=(0.2,) * channels,
    )
    return describe_encoder(network, transform)


@pytest.mark.parametrize(("dtype", "channels"), [("float32", 6), ("uint16", 1)])
@pytest.mark.parametrize("target", ["safetensors", "torchvision", "timm", "hf"])
def test_the_printed_lines_give_our_features(target, dtype, channels, tmp_path, monkeypatch):
    encoder = deep_encoder(dtype, channels)
    x = np.random.default_rng(0).integers(0, 5000, (50, 70, channels)).astype(dtype)
    np.save(tmp_path / "image.npy", x)
    monkeypatch.chdir(tmp_path)
    found = {"folder": str(tmp_path)}
    with torch.no_grad():
        exec(TARGETS[target].write(encoder, tmp_path), found)
        expected = encoder.network(encoder.transform(x)[None])
    torch.testing.assert_close(found["features"], expected, rtol=1e-4, atol=1e-4)


def test_the_lines_import_what_they_use_once_and_in_order(tmp_path):
    lines = TARGETS["torchvision"].write(deep_encoder("uint16", 1), tmp_path)
    imports = with_folder(lines, ".").partition("\n\n")[0].splitlines()
    assert imports == ["import numpy as np", "import torch", "import torchvision"]


def test_a_target_for_photographs_alone_says_so():
    encoder = deep_encoder("uint16", 2)
    with pytest.raises(UserError, match="detectron2 reads 8-bit gray or color"):
        _check_images("detectron2", encoder, ExportOptions(to="detectron2"))
    with pytest.raises(UserError, match="--with-transform resizes 8-bit"):
        _check_images("onnx", encoder, ExportOptions(to="onnx", with_transform=True))
