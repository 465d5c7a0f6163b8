"""A classifier is loaded strictly by each library, and gives the predictions of selfsight."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn

from selfsight.backbones.from_timm import TimmBackbone
from selfsight.backbones.from_torchvision import TorchvisionBackbone
from selfsight.data.eval_transform import standard_transform
from selfsight.exporters.export_encoder import TARGETS, describe_encoder
from selfsight.exporters.exported_encoder import ExportedHead
from tests.exporters.saved_run import save_photo, shake
from tests.exporters.test_export import encoder_of

NAMES = ("=cmd", "maple", "oak")


def with_head(encoder):
    torch.manual_seed(0)
    head = nn.Linear(encoder.network.dim, len(NAMES)).requires_grad_(False)
    return encoder._replace(head=ExportedHead(head, NAMES))


def foreign(build, size=32):
    torch.manual_seed(0)
    return describe_encoder(shake(build()), standard_transform(size))


ENCODERS = {
    "resnet": lambda: encoder_of("imagenet"),
    "stem": lambda: encoder_of("lowres_pad2_4"),
    "narrow": lambda: encoder_of("narrow"),
    "vit": lambda: encoder_of("vit"),
    "timm": lambda: foreign(lambda: TimmBackbone("convnext_atto", image_size=32)),
    "torchvision": lambda: foreign(lambda: TorchvisionBackbone("mobilenet_v3_small")),
}
FAST = {("vit", "timm"), ("vit", "torchvision"), ("narrow", "safetensors")}
CASES = [
    ("resnet", "safetensors"),
    ("narrow", "safetensors"),
    ("resnet", "torchvision"),
    ("stem", "torchvision"),
    ("vit", "torchvision"),
    ("torchvision", "torchvision"),
    ("stem", "timm"),
    ("resnet", "timm"),
    ("vit", "timm"),
    ("timm", "timm"),
    ("narrow", "hf"),
    ("vit", "hf"),
    ("vit", "onnx"),
]


@pytest.mark.parametrize(
    ("name", "target"),
    [c if c in FAST else pytest.param(*c, marks=pytest.mark.slow) for c in CASES],
)
def test_the_library_predicts_what_selfsight_predicts(name, target, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    encoder, folder = with_head(ENCODERS[name]()), tmp_path / "out"
    folder.mkdir()
    save_photo("photo.jpg", size=(78, 61))
    (folder / "classes.json").write_text(json.dumps(NAMES))
    names = {"folder": str(folder)}
    exec(TARGETS[target].write(encoder, folder), names)
    mode = {3: "RGB", 4: "RGBA"}[encoder.transform.channels]
    x = encoder.transform(Image.open("photo.jpg").convert(mode))[None]
    with torch.no_grad():
        expected = encoder.head.linear(encoder.network(x)).softmax(dim=1)
    found = torch.as_tensor(names["probabilities"]).detach()
    # timm and the lines of onnx resize with Pillow, which rounds otherwise.
    assert float((found - expected).abs().max()) < (2e-2 if target in ("timm", "onnx") else 1e-5)
    assert names["label"] == NAMES[int(expected.argmax())]
    if target in ("torchvision", "timm"):
        with torch.no_grad():
            same = names["model"](x).softmax(dim=1)
        assert float((same - expected).abs().max()) < 1e-6
    if (name, target) == ("timm", "timm"):  # which has a name of its own for the layer
        weights = load_file(folder / "model.safetensors")
        assert torch.equal(weights["head.fc.weight"], encoder.head.linear.weight)
        assert names["model"].pretrained_cfg["label_names"] == list(NAMES)
    if target == "hf":
        assert names["model"].config.label2id == {n: i for i, n in enumerate(NAMES)}
        _, missing = type(names["model"]).from_pretrained(folder, output_loading_info=True)
        assert not any(missing.values()), missing
    if target == "onnx":
        found = names["session"].run(None, {"images": x.numpy()})[0]
        assert np.abs(found - expected.numpy()).max() < 1e-5
        saved = names["session"].get_modelmeta().custom_metadata_map
        assert json.loads(saved["classes"]) == list(NAMES)
