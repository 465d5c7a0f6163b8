import pytest

from selfsight.backbones.layer_depths import layer_depths
from tests.evals.test_drop_path import backbone


@pytest.mark.parametrize(
    ("name", "first", "last", "count"),
    [
        ("vit_t4", "patch_embed.proj.weight", "norm.weight", 14),
        ("resnet18_narrow", "conv1.weight", "layer4.1.conv2.weight", 9),
        ("timm:vit_tiny_patch16_224", "net.patch_embed.proj.weight", "net.norm.weight", 14),
        ("timm:resnet18", "net.conv1.weight", "net.layer4.1.conv2.weight", 9),
    ],
)
def test_layers_are_numbered_from_the_stem(name, first, last, count):
    net = backbone(name)
    found = layer_depths(net)
    assert set(found) == {n for n, _ in net.named_parameters()}
    assert found[first] == 0
    assert found[last] == max(found.values())
    assert len(set(found.values())) in (count, count - 1)  # timm counts the last norm to a block


def test_our_vit_and_timms_have_the_same_layer_numbers():
    ours = layer_depths(backbone("vit_t4"))
    theirs = layer_depths(backbone("timm:vit_tiny_patch16_224"))
    for block in range(12):
        name = f"blocks.{block}.mlp.fc1.weight"
        assert ours[name] == theirs[f"net.{name}"] == block + 1
