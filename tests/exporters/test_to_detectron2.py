"""detectron2's file holds its names, our numbers, and nothing that only numpy 2 can read."""

import pickle

import numpy as np
import pytest
import torch

from selfsight.backbones.resnet import Bottleneck, ResNet
from selfsight.data.eval_transform import standard_transform
from selfsight.exporters.export_encoder import describe_encoder
from selfsight.exporters.to_detectron2 import FILE, write

NORM = ("weight", "bias", "running_mean", "running_var")


WIDTH = 8  # of the stem, where detectron2's ResNet-50 has 64


def names_of_r50():
    """detectron2's ResNet-50: a stem, then stages res2 to res5 of 3, 4, 6 and 3 bottlenecks."""
    shapes = {"stem.conv1.weight": (WIDTH, 3, 7, 7)}
    shapes |= {f"stem.conv1.norm.{part}": (WIDTH,) for part in NORM}
    before = WIDTH
    for stage, depth in zip(range(2, 6), (3, 4, 6, 3), strict=True):
        inner = WIDTH * 2 ** (stage - 2)
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
def r50(tmp_path_factory):
    network = ResNet(Bottleneck, (3, 4, 6, 3), width=WIDTH)
    folder = tmp_path_factory.mktemp("r50")
    write(describe_encoder(network, standard_transform(224)), folder)
    return network, (folder / FILE).read_bytes(), (folder / "config.yaml").read_text()


def test_names_and_shapes_of_r50_are_detectron2s(r50):
    content = pickle.loads(r50[1], encoding="latin1")
    assert content["matching_heuristics"] is True and isinstance(content["__author__"], str)
    assert {k: v.shape for k, v in content["model"].items()} == names_of_r50()
    assert all(v.dtype == np.float32 and v.flags.writeable for v in content["model"].values())


def test_weights_go_where_their_names_say(r50):
    net, model = r50[0], pickle.loads(r50[1])["model"]
    for name, value in (
        ("stem.conv1.norm.bias", net.bn1.bias),
        ("res3.1.conv2.weight", net.layer2[1].conv2.weight),
        ("res3.0.conv3.norm.running_var", net.layer2[0].bn3.running_var),
        ("res5.0.shortcut.weight", net.layer4[0].downsample[0].weight),
        ("res5.0.shortcut.norm.weight", net.layer4[0].downsample[1].weight),
    ):
        assert torch.equal(torch.from_numpy(model[name]), value.detach())


def test_the_file_names_no_module_that_only_numpy_2_has(r50):
    assert b"_core" not in r50[1]


def test_the_config_has_the_settings_that_build_it(r50):
    for setting in ("STEM_OUT_CHANNELS: 8", "RES2_OUT_CHANNELS: 32", "WIDTH_PER_GROUP: 8"):
        assert setting in r50[2]
