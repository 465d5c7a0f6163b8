"""ResNet (He et al. 2015, arXiv:1512.03385), with torchvision's parameter names.

Weights load into torchvision's models and back, except for the classifier, which is absent.
"""

from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from selfsight.nn import Backbone
from selfsight.nn.batch_norm import BatchNorm

Stem = Literal["imagenet", "lowres", "half", "lowres_pad2"]
# Kernel size, stride and padding of the first convolution.
STEMS: dict[Stem, tuple[int, int, int]] = {
    "imagenet": (7, 2, 3),
    "lowres": (3, 1, 1),
    "half": (3, 2, 1),
    "lowres_pad2": (3, 1, 2),
}
Maps = Float[Tensor, "n _ _ _"]


def conv(i: int, o: int, size: int, stride: int = 1) -> nn.Conv2d:
    """Return a convolution with padding that preserves the size at stride 1."""
    return nn.Conv2d(i, o, size, stride=stride, padding=size // 2, bias=False)


def shortcut(i: int, o: int, stride: int) -> nn.Module:
    """Return the shortcut of a block: a projection where the shape changes."""
    if i == o and stride == 1:
        return nn.Identity()
    return nn.Sequential(conv(i, o, 1, stride), nn.BatchNorm2d(o))


def find_stem(network: "ResNet") -> Stem:
    """The name of a network's stem."""
    conv = network.conv1
    first = (conv.kernel_size[0], conv.stride[0], int(conv.padding[0]))
    return next(stem for stem, shape in STEMS.items() if shape == first)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions."""

    expansion = 1

    def __init__(self, i: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv(i, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = shortcut(i, width, stride)

    def forward(self, x: Maps) -> Maps:
        """Add branch and shortcut."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.relu(y + self.downsample(x))


class Bottleneck(nn.Module):
    """A 3x3 convolution between two of 1x1; the stride is on the 3x3, as in torchvision."""

    expansion = 4

    def __init__(self, i: int, width: int, stride: int) -> None:
        super().__init__()
        o = width * self.expansion
        self.conv1 = conv(i, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = conv(width, o, 1)
        self.bn3 = nn.BatchNorm2d(o)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = shortcut(i, o, stride)

    def forward(self, x: Maps) -> Maps:
        """Add branch and shortcut."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return self.relu(y + self.downsample(x))


class ResNet(Backbone):
    """Stem, four stages of blocks, global average.

    `width` is that of the stem and the first stage: 64 is the paper's, 128 and 256 make every
    channel two and four times as wide, 16 is for the CPU. A last depth of 0 omits that stage.
    The stem is a 7x7 convolution with stride 2 and max pooling (`imagenet`), or a 3x3 convolution
    alone: with stride 1 (`lowres`), stride 2 (`half`), or padding 2 (`lowres_pad2`, solo-learn's).
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: tuple[int, int, int, int],
        *,
        width: int = 64,
        stem: Stem = "imagenet",
        in_channels: int = 3,
        zero_init_residual: bool = False,
    ) -> None:
        super().__init__()
        self.zero_init_residual = zero_init_residual
        self.conv1 = nn.Conv2d(in_channels, width, *STEMS[stem], bias=False)
        pools = stem == "imagenet"
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if pools else nn.Identity()
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

        def stage(i: int, width: int, depth: int, stride: int) -> nn.Sequential:
            o = width * block.expansion
            first = [block(i, width, stride)] if depth else []
            return nn.Sequential(*first, *(block(o, width, 1) for _ in range(depth - 1)))

        out = block.expansion * width
        self.layer1 = stage(width, width, depths[0], 1)
        self.layer2 = stage(out, 2 * width, depths[1], 2)
        self.layer3 = stage(2 * out, 4 * width, depths[2], 2)
        self.layer4 = stage(4 * out, 8 * width, depths[3], 2)
        self.dim = 8 * out if depths[3] else 4 * out
        self.init_weights()

    def forward(self, x: Maps) -> Float[Tensor, "n d"]:
        """Return one feature vector per image."""
        return self.forward_from_stage(self.forward_to_stage(x, 0), 0)

    def forward_to_stage(self, x: Maps, stage: int) -> Maps:
        """Return the feature maps after a stage; 0 is the stem."""
        x = self.stem(x)
        for layer in self.layers[:stage]:
            x = layer(x)
        return x

    def forward_from_stage(self, x: Maps, stage: int) -> Float[Tensor, "n d"]:
        """Return the features from the maps that `forward_to_stage` returned for this stage."""
        for layer in self.layers[stage:]:
            x = layer(x)
        return self.pool(x)

    def stem(self, x: Maps) -> Maps:
        """Apply the layers before the first stage."""
        return self.maxpool(self.relu(self.bn1(self.conv1(x))))

    def pool(self, x: Maps) -> Float[Tensor, "n d"]:
        """Average over positions."""
        return x.mean((2, 3))

    @property
    def layers(self) -> list[nn.Module]:
        """The four stages."""
        return [self.layer1, self.layer2, self.layer3, self.layer4]

    def init_weights(self) -> None:
        """Initialize as torchvision does, optionally with the last norm of each block at 0."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, nn.BatchNorm2d | BatchNorm):
                assert module.weight is not None and module.bias is not None
                nn.init.ones_(module.weight)
                nn.init.zeros_(module.bias)
        if self.zero_init_residual:
            for module in self.modules():
                if isinstance(module, BasicBlock | Bottleneck):
                    last = module.bn2 if isinstance(module, BasicBlock) else module.bn3
                    nn.init.zeros_(last.weight)
