"""The shape of a network, read from the module, from which any library can build it."""

from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

from selfsight.backbones.resnet import STEMS, BasicBlock, ResNet, Stem, find_stem
from selfsight.backbones.vit import TokenBatchNorm, ViT
from selfsight.nn.group_and_layer_norm import StandardizedConv


@dataclass(frozen=True, kw_only=True)
class ResNetShape:
    """A ResNet of selfsight."""

    block: Literal["BasicBlock", "Bottleneck"]
    depths: tuple[int, ...]
    width: int
    stem: Stem
    channels: int
    norm: Literal["bn", "ln", "ws"]

    @property
    def name(self) -> str:
        """The usual name, such as resnet18."""
        layers = (2 if self.block == "BasicBlock" else 3) * sum(self.depths) + 2
        return f"resnet{layers}"

    @property
    def is_plain(self) -> bool:
        """Whether torchvision and timm have a network with these blocks: batch norm, width 64."""
        return self.norm == "bn" and self.width == 64 and min(self.depths) > 0

    def replaced_stem(self) -> str:
        """The lines that replace the stem of torchvision's or timm's `model`; often none."""
        if self.stem == "imagenet" and self.channels == 3:
            return ""
        size, stride, padding = STEMS[self.stem]
        line = (
            f"model.conv1 = torch.nn.Conv2d({self.channels}, {self.width}, {size}, stride={stride}"
            f", padding={padding}, bias=False)"
        )
        return line if self.stem == "imagenet" else f"{line}\nmodel.maxpool = torch.nn.Identity()"

    def build_lines(self) -> tuple[str, str]:
        """The lines that import and those that build it with selfsight."""
        settings = f'width={self.width}, stem="{self.stem}", in_channels={self.channels}'
        imports = f"from selfsight.backbones.resnet import {self.block}, ResNet"
        build = f"model = ResNet({self.block}, {self.depths}, {settings})"
        if self.norm == "bn":
            return imports, build
        return (
            f"{imports}\nfrom selfsight.nn.batch_norm import convert_batch_norm\n"
            "from selfsight.nn.group_and_layer_norm import replace_batch_norm",
            f'{build}\nmodel = replace_batch_norm(convert_batch_norm(model, None), "{self.norm}")',
        )


@dataclass(frozen=True, kw_only=True)
class ViTShape:
    """A ViT of selfsight, with MoCo v3's positions."""

    dim: int
    depth: int
    heads: int
    patch: int
    image_size: int
    channels: int
    mlp_norm: Literal["ln", "bn"]
    name: str = "vit"

    @property
    def is_plain(self) -> bool:
        """Whether other libraries have such blocks: no batch norm."""
        return self.mlp_norm == "ln"

    def build_lines(self) -> tuple[str, str]:
        """The lines that import and those that build it with selfsight."""
        settings = f'patch={self.patch}, mlp_norm="{self.mlp_norm}", in_channels={self.channels}'
        return (
            "from selfsight.backbones.vit import ViT",
            f"model = ViT({self.dim}, {self.depth}, {self.heads}, {settings},\n"
            f"    image_size={self.image_size})",
        )


@dataclass(frozen=True, kw_only=True)
class LibraryNet:
    """A network of timm or torchvision, without its classifier."""

    library: Literal["timm", "torchvision"]
    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    head: str = ""  # torchvision: the layer that is replaced by an identity

    def build_lines(self, num_classes: int = 0) -> tuple[str, str]:
        """The lines that import and those that build it, without a head if there are no classes."""
        given = self.arguments | ({"num_classes": num_classes} if num_classes else {})
        arguments = "".join(f", {key}={value!r}" for key, value in given.items())
        if self.library == "timm":
            return "import timm", f'model = timm.create_model("{self.name}"{arguments})'
        parent, _, child = self.head.rpartition(".")
        owner = f'model.get_submodule("{parent}")' if parent else "model"
        without = "" if num_classes else f'\nsetattr({owner}, "{child}", torch.nn.Identity())'
        return (
            "import torch\nimport torchvision",
            f'model = torchvision.models.get_model("{self.name}"{arguments}){without}',
        )


@dataclass(frozen=True, kw_only=True)
class OtherNet:
    """A network of code from outside selfsight, or one that no library builds by settings."""

    name: str


NetworkShape = ResNetShape | ViTShape | LibraryNet | OtherNet


def describe_network(network: nn.Module, image_size: int) -> NetworkShape:
    """Read the shape off a backbone; `image_size` is that of its images."""
    if isinstance(network, ResNet):
        return _describe_resnet(network)
    if isinstance(network, ViT):
        first: Any = network.blocks[0]
        return ViTShape(
            dim=network.dim,
            depth=len(network.blocks),
            heads=first.attn.heads,
            patch=network.patch,
            image_size=image_size,
            channels=network.patch_embed.proj.in_channels,
            mlp_norm="bn" if isinstance(first.norm2, TokenBatchNorm) else "ln",
        )
    # Imported here, because they import timm and torchvision: two seconds.
    from selfsight.backbones.foreign_checkpoints.infer_network import LearnedViT
    from selfsight.backbones.from_timm import TimmBackbone
    from selfsight.backbones.from_torchvision import TorchvisionBackbone

    if isinstance(network, TimmBackbone):
        return LibraryNet(library="timm", name=network.name, arguments=network.arguments)
    if isinstance(network, LearnedViT) and network.arguments is not None:
        name = "vit_base_patch16_224"  # all that it fixes is in the arguments
        return LibraryNet(library="timm", name=name, arguments=network.arguments)
    if isinstance(network, TorchvisionBackbone):
        return LibraryNet(
            library="torchvision",
            name=network.name,
            arguments=network.arguments,
            head=network.head,
        )
    return OtherNet(name=type(network).__name__)


def _describe_resnet(network: ResNet) -> ResNetShape:
    blocks = [block for layer in network.layers for block in layer]  # type: ignore[attr-defined]
    conv, norm = network.conv1, "bn"
    if isinstance(network.bn1, nn.GroupNorm):
        norm = "ws" if isinstance(conv, StandardizedConv) else "ln"
    return ResNetShape(
        block="BasicBlock" if isinstance(blocks[0], BasicBlock) else "Bottleneck",
        depths=tuple(len(layer) for layer in network.layers),  # type: ignore[arg-type]
        width=conv.out_channels,
        stem=find_stem(network),
        channels=conv.in_channels,
        norm=norm,  # type: ignore[arg-type]
    )
