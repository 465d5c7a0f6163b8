"""The first convolution for other channels, against the network with its own."""

import pytest
import torch

from selfsight.backbones import BackboneConfig
from selfsight.backbones.input_channels import fit_network, fit_weights


@pytest.mark.parametrize("name", ["resnet8_narrow", "vit_t4"])
@pytest.mark.parametrize("channels", [1, 6])
def test_equal_channels_have_the_features_of_the_gray_image(name, channels):
    torch.manual_seed(0)
    config = BackboneConfig(name=name, image_size=32)
    network = config.build().eval()
    gray = torch.randn(2, 1, 32, 32)
    with torch.no_grad():
        expected = network(gray.expand(-1, 3, -1, -1))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    assert "mean of the 3 kernels" in fit_network(network, channels)
    other = BackboneConfig(name=name, image_size=32, in_channels=channels).build().eval()
    other.load_state_dict(fit_weights(dict(sorted(before.items())), other.state_dict()))
    for fitted in (network, other):
        with torch.no_grad():
            found = fitted(gray.expand(-1, channels, -1, -1))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_the_same_channels_leave_the_weights_alone():
    network = BackboneConfig(name="resnet8_narrow", image_size=32).build()
    before = network.conv1.weight.clone()
    assert fit_network(network, 3) == ""
    assert torch.equal(network.conv1.weight, before)
