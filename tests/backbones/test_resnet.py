"""Our ResNets against torchvision's, and what torchvision's do not have."""

import pytest
import torch
import torchvision

from selfsight.backbones import BACKBONES, BackboneConfig
from selfsight.backbones.resnet import Bottleneck, ResNet
from selfsight.nn.batch_norm import convert_batch_norm


def images(size=64, channels=3):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, channels, size, size, generator=generator)


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_weights_load_into_torchvision_and_give_its_features(name):
    torch.manual_seed(0)
    ours = BackboneConfig(name=name, stem="imagenet").build()
    with torch.device("meta"):
        theirs = torchvision.models.get_model(name, num_classes=1)
    theirs.fc = torch.nn.Identity()
    weights = {key: value.clone() for key, value in ours.state_dict().items()}
    theirs.load_state_dict(weights, strict=True, assign=True)
    x = images()
    for mode in (True, False):  # the second with running statistics that the first has moved
        ours.train(mode)
        theirs.train(mode)
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("zero", [True, False])
def test_weights_are_drawn_as_torchvision_draws_them(zero):
    torch.manual_seed(0)
    ours = BackboneConfig(name="resnet18", stem="imagenet", zero_init_residual=zero).build()
    theirs = torchvision.models.resnet18(num_classes=1, zero_init_residual=zero).state_dict()
    for name, weight in ours.state_dict().items():
        if weight.ndim == 4 and weight.numel() > 10_000:
            assert weight.std().item() == pytest.approx(theirs[name].std().item(), rel=0.05), name
        elif weight.ndim == 1:
            assert torch.equal(weight, theirs[name]), name


def test_a_bottleneck_starts_as_its_shortcut_if_asked():
    network = ResNet(Bottleneck, (1, 1, 1, 1), width=8, zero_init_residual=True)
    for layer in network.layers:
        norms = layer[0].bn1, layer[0].bn2, layer[0].bn3
        assert [norm.weight.unique().item() for norm in norms] == [1, 1, 0]


@pytest.mark.parametrize(
    ("name", "millions"),
    [("resnet18", 11.18), ("resnet50", 23.51), ("resnet50x2", 93.9), ("resnet50x4", 375.4)],
)
def test_wide_networks_multiply_every_channel(name, millions):
    with torch.device("meta"):
        network = BackboneConfig(name=name).build()
    count = sum(p.numel() for p in network.parameters())
    assert round(count / 1e6, 2 if millions < 50 else 1) == millions
    assert network.conv1.out_channels == 64 * {"x2": 2, "x4": 4}.get(name[-2:], 1)


# The larger ViTs differ from the small one in width and depth, which test_vit.py checks.
SMALLER = [
    name for name in BACKBONES if not name.startswith(("vit_l", "vit_h", "vit_bn_l", "vit_bn_h"))
]


@pytest.mark.parametrize("name", SMALLER)
def test_every_network_returns_features_of_its_dim(name, monkeypatch):
    monkeypatch.setattr(torch.nn.BatchNorm2d, "forward", lambda self, x: x)  # takes longest
    with torch.device("meta"):
        network = BackboneConfig(name=name).build().eval()
    if name.startswith("vit_"):
        del network.blocks[1:]  # all alike
    assert network(torch.empty(2, 3, 112, 112, device="meta")).shape == (2, network.dim)


@pytest.mark.parametrize(("stem", "side"), [("imagenet", 8), ("lowres", 32)])
def test_the_low_resolution_stem_keeps_every_pixel(stem, side):
    network = BackboneConfig(name="resnet10_narrow", stem=stem).build()
    assert network.stem(images(32)).shape == (2, 16, side, side)
    assert network.forward_to_stage(images(32), 4).shape[2:] == (max(side // 8, 1),) * 2


@pytest.mark.parametrize("channels", [1, 4])
def test_images_may_have_any_number_of_channels(channels):
    network = BackboneConfig(name="resnet10_narrow", in_channels=channels).build()
    assert network(images(32, channels)).shape == (2, 128)


@pytest.mark.parametrize("stage", range(5))
def test_up_to_a_stage_and_onward_is_the_whole(stage):
    torch.manual_seed(0)
    network = BackboneConfig(name="resnet10_narrow").build().eval()
    x = images(32)
    assert torch.equal(
        network.forward_from_stage(network.forward_to_stage(x, stage), stage), network(x)
    )


def test_drawing_anew_forgets_the_weights_and_keeps_the_zero_start():
    torch.manual_seed(0)
    network = BackboneConfig(name="resnet10_narrow", zero_init_residual=True).build()
    network = convert_batch_norm(network, None)
    old = network.conv1.weight.clone()
    with torch.no_grad():
        for p in network.parameters():
            p.add_(1)
    network.init_weights()
    assert not torch.allclose(network.conv1.weight, old)
    assert network.conv1.weight.mean().abs() < 0.1
    assert torch.equal(network.layer1[0].bn2.weight, torch.zeros(16))
    assert torch.equal(network.layer1[0].bn1.weight, torch.ones(16))
