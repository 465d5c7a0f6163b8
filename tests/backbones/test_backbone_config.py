"""Choosing a backbone by name: ours, timm's, an outsider's, and what a wrong name gets."""

import jaxtyping
import pytest
import torch

from selfsight.backbones import BackboneConfig, stem_for
from selfsight.errors import UserError
from selfsight.nn import Backbone


@pytest.mark.parametrize(
    ("size", "stem"), [(28, "lowres"), (32, "lowres"), (64, "lowres"), (65, "imagenet")]
)
def test_small_images_get_the_low_resolution_stem(size, stem):
    assert stem_for(size) == stem
    with torch.device("meta"):
        network = BackboneConfig(name="resnet18", image_size=size).build()
    assert network.conv1.stride == {"lowres": (1, 1), "imagenet": (2, 2)}[stem]


@pytest.mark.parametrize(
    ("name", "dim", "channels"),
    [
        ("resnet10t", 512, 1),
        ("vit_tiny_patch16_224", 192, 3),
        ("mobilenetv3_small_050", 1024, 4),
    ],
)
def test_timm_models_give_rows_of_their_width(name, dim, channels):
    config = BackboneConfig(name=f"timm:{name}", image_size=32, in_channels=channels)
    network = config.build()
    assert network.dim == dim
    assert network.training
    assert network(torch.randn(2, channels, 32, 32)).shape == (2, dim)


def test_an_unknown_timm_model_offers_the_nearest():
    with pytest.raises(UserError, match=r'no model "resnet10".*Did you mean "resnet1'):
        BackboneConfig(name="timm:resnet10").build()


def test_a_size_that_a_timm_model_cannot_take_is_a_sentence():
    config = BackboneConfig(name="timm:swinv2_tiny_window8_256", image_size=36)
    with pytest.raises(UserError, match="cannot take images of 36 x 36 with 3 channels"):
        config.build()


class Flat(Backbone):
    """What somebody else might bring."""

    def __init__(self, *, in_channels, image_size):
        super().__init__()
        self.dim = in_channels * image_size**2

    def forward(self, x):
        return x.flatten(1)


def no_width(**_):
    return torch.nn.Identity()


def test_an_outsider_s_network_is_named_by_module_and_name():
    network = BackboneConfig(name=f"{__name__}:Flat", image_size=8).build()
    assert isinstance(network, Flat)
    assert network.dim == 3 * 64


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("no.such.package:Name", "No module named 'no'.*PYTHONPATH"),
        (f"{__name__}:Absent", "has no attribute 'Absent'"),
        (f"{__name__}:no_width", "without an integer `dim`"),
    ],
)
def test_an_invalid_external_backbone_raises_an_error(name, sentence):
    with pytest.raises(UserError, match=sentence):
        BackboneConfig(name=name).build()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"name": "resnet51"}, 'no backbone "resnet51". Did you mean "resnet50"'),
        ({"stem": "low"}, 'Did you mean "lowres"'),
        ({"name": "timm:resnet10t", "stem": "lowres"}, "has a fixed stem"),
        ({"in_channels": 0}, "in_channels is 0; it must be 1 or more"),
    ],
)
def test_invalid_settings_raise_an_error_that_names_them(settings, sentence, monkeypatch):
    # users run without the tests' type checks, which would refuse an unknown word first
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(UserError, match=sentence):
        BackboneConfig(**settings)
