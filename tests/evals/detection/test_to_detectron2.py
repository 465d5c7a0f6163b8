"""detectron2's file holds its names, our numbers, and nothing that only numpy 2 can read."""

import pickle

import numpy as np
import pytest
import torch

from selfsight.backbones import BackboneConfig
from selfsight.backbones.resnet import Bottleneck, ResNet
from selfsight.errors import UserError
from selfsight.evals.detection import to_detectron2

NORM = ("weight", "bias", "running_mean", "running_var")


def names_of_r50():
    """detectron2's ResNet-50: a stem, then stages res2 to res5 of 3, 4, 6 and 3 bottlenecks."""
    shapes = {"stem.conv1.weight": (64, 3, 7, 7)}
    shapes |= {f"stem.conv1.norm.{part}": (64,) for part in NORM}
    before = 64
    for stage, depth in zip(range(2, 6), (3, 4, 6, 3), strict=True):
        inner = 64 * 2 ** (stage - 2)
        outer = 4 * inner
        for block in range(depth):
            convs = {
                "conv1": (inner, before, 1),
                "conv2": (inner, inner, 3),
                "conv3": (outer, inner, 1),
            }
            if block == 0:
                convs["shortcut"] = (outer, before, 1)
            for conv, (o, i, side) in convs.items():
                name = f"res{stage}.{block}.{conv}"
                shapes[f"{name}.weight"] = (o, i, side, side)
                shapes |= {f"{name}.norm.{part}": (o,) for part in NORM}
            before = outer
    return shapes


@pytest.fixture(scope="module")
def r50():
    return BackboneConfig(name="resnet50", stem="imagenet").build()


def test_names_and_shapes_of_r50_are_detectron2s(tmp_path, r50):
    content = pickle.loads(to_detectron2(r50, tmp_path / "r50.pkl").read_bytes(), encoding="latin1")
    assert content["matching_heuristics"] is True and isinstance(content["__author__"], str)
    assert {k: v.shape for k, v in content["model"].items()} == names_of_r50()
    assert all(v.dtype == np.float32 and v.flags.writeable for v in content["model"].values())


def test_weights_go_where_their_names_say(tmp_path):
    net = ResNet(Bottleneck, (1, 2, 1, 1), width=8)
    model = pickle.loads(to_detectron2(net, tmp_path / "w.pkl").read_bytes())["model"]
    for name, value in (
        ("stem.conv1.norm.bias", net.bn1.bias),
        ("res3.1.conv2.weight", net.layer2[1].conv2.weight),
        ("res3.0.conv3.norm.running_var", net.layer2[0].bn3.running_var),
        ("res5.0.shortcut.weight", net.layer4[0].downsample[0].weight),
        ("res5.0.shortcut.norm.weight", net.layer4[0].downsample[1].weight),
    ):
        assert torch.equal(torch.from_numpy(model[name]), value.detach())


def test_the_file_names_no_module_that_only_numpy_2_has(tmp_path):
    net = ResNet(Bottleneck, (1, 1, 1, 1), width=8)
    assert b"_core" not in to_detectron2(net, tmp_path / "w.pkl").read_bytes()


@pytest.mark.parametrize(
    ("backbone", "sentence"),
    [
        (BackboneConfig(name="resnet18_narrow", stem="lowres").build(), "7 x 7 convolution"),
        (BackboneConfig(name="vit_t4", image_size=32).build(), "for ResNets"),
    ],
)
def test_backbones_that_detectron2_has_not_get_a_sentence(tmp_path, backbone, sentence):
    with pytest.raises(UserError, match=sentence):
        to_detectron2(backbone, tmp_path / "w.pkl")
