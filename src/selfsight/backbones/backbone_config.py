"""Backbones by name and their settings: widths, depths, heads and stems; build one."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from selfsight.backbones.resnet import BasicBlock, Bottleneck, ResNet, Stem
from selfsight.backbones.vit import ViT, check_divides_into_patches
from selfsight.check_settings import CHANNELS, PIXELS, check_settings
from selfsight.errors import UserError, suggest
from selfsight.nn import Backbone
from selfsight.outside_code import import_name

# Width, depth, heads. MoCo v3 gives ViT-S twelve heads; DeiT-S has six.
VITS = {"s": (384, 12, 12), "b": (768, 12, 12), "l": (1024, 24, 16), "h": (1280, 32, 16)}

BACKBONES: dict[str, partial[Any]] = {
    # For the CPU: 16 channels are twice as fast as 24 (470 and 250 images a second, forward and
    # backward, at 32 pixels with the low-resolution stem, on one 2.8 GHz core).
    "resnet8_narrow": partial(ResNet, BasicBlock, (1, 1, 1, 0), width=16),
    "resnet10_narrow": partial(ResNet, BasicBlock, (1, 1, 1, 1), width=16),
    "resnet18_narrow": partial(ResNet, BasicBlock, (2, 2, 2, 2), width=16),
    "resnet18": partial(ResNet, BasicBlock, (2, 2, 2, 2)),
    "resnet34": partial(ResNet, BasicBlock, (3, 4, 6, 3)),
    "resnet50": partial(ResNet, Bottleneck, (3, 4, 6, 3)),
    "resnet50x2": partial(ResNet, Bottleneck, (3, 4, 6, 3), width=128),
    "resnet50x4": partial(ResNet, Bottleneck, (3, 4, 6, 3), width=256),
    # For images of 32 pixels: DeiT-Ti's width on patches of 4.
    "vit_t4": partial(ViT, 192, 12, 3, patch=4),
    "vit_bn_t4": partial(ViT, 192, 12, 3, patch=4, mlp_norm="bn"),
    # To try a recipe in seconds.
    **{f"vit_narrow{p}": partial(ViT, 48, 2, 3, patch=p) for p in (16, 14, 7, 4)},
    **{f"vit_bn_narrow{p}": partial(ViT, 48, 2, 3, patch=p, mlp_norm="bn") for p in (16, 14, 7, 4)},
    **{f"vit_{s}{p}": partial(ViT, *VITS[s], patch=p) for s in VITS for p in (16, 14, 7)},
    **{
        f"vit_bn_{s}{p}": partial(ViT, *VITS[s], patch=p, mlp_norm="bn")
        for s in VITS
        for p in (16, 14, 7)
    },
}


@dataclass(frozen=True, kw_only=True)
class BackboneConfig:
    """Settings of a backbone.

    `name` is a key of BACKBONES, "timm:<model>", or "package.module:Name", which is called with
    in_channels and image_size and returns a module with an attribute `dim`.
    """

    name: str = "resnet18"
    stem: Literal["auto", "imagenet", "lowres", "half", "lowres_pad2"] = "auto"
    """Only for the ResNets of BACKBONES."""
    in_channels: int = 3
    zero_init_residual: bool = False  # only for the ResNets of BACKBONES
    freeze_patch: bool = True  # only for the ViTs: random, fixed patch projection (MoCo v3)
    image_size: int = 224

    def __post_init__(self) -> None:
        check_settings(self, "backbone.", {"in_channels": CHANNELS, "image_size": PIXELS})
        if ":" not in self.name and self.name not in BACKBONES:
            raise UserError(
                f'There is no backbone "{self.name}".{suggest(self.name, BACKBONES)} Known are '
                f'{", ".join(BACKBONES)}, "timm:<model>" and "package.module:Name".'
            )
        if (":" in self.name or self.is_vit) and self.stem != "auto":
            raise UserError(
                f'backbone.stem is "{self.stem}", but "{self.name}" has a fixed stem. '
                "Leave backbone.stem at auto."
            )

        self.check_view_size(self.image_size)

    @property
    def is_vit(self) -> bool:
        """Whether this is a ViT of BACKBONES, which has no stem."""
        return self.name.startswith("vit_")

    def check_view_size(self, size: int) -> None:
        """Raise a UserError if the network cannot process views of this size."""
        if self.is_vit:
            check_divides_into_patches(size, BACKBONES[self.name].keywords["patch"])

    def resolved(self) -> "BackboneConfig":
        """The same network with its stem by name; those without a choice of stems stay at auto."""
        if self.stem != "auto" or ":" in self.name or self.is_vit:
            return self
        return replace(self, stem=stem_for(self.image_size, self.name))

    def build(self) -> Backbone:
        """Build the network with random weights."""
        shape = {"in_channels": self.in_channels, "image_size": self.image_size}
        if self.name.startswith("timm:"):
            from selfsight.backbones.from_timm import TimmBackbone  # importing timm takes a second

            return TimmBackbone(self.name.removeprefix("timm:"), **shape)
        if ":" in self.name:
            return build_external(self.name, **shape)
        if self.is_vit:
            return BACKBONES[self.name](**shape, freeze_patch=self.freeze_patch)
        return BACKBONES[self.name](
            stem=self.resolved().stem,
            in_channels=self.in_channels,
            zero_init_residual=self.zero_init_residual,
        )


def stem_for(image_size: int, name: str = "resnet18") -> Stem:
    """Return the low-resolution stem up to 64 pixels, the ImageNet stem above.

    The ImageNet stem divides each side by 4 and the network by 32, so that 64 pixels end as a map
    of 2 x 2; without its strides they end as 8 x 8, about what 224 pixels give (7 x 7). The narrow
    networks are for the CPU: they halve images of 32 pixels, which is four times as fast.
    """
    if name.endswith("_narrow"):
        return "half" if image_size <= 40 else "imagenet"
    return "lowres" if image_size <= 64 else "imagenet"


def build_external(name: str, **arguments: Any) -> Backbone:
    """Import "package.module:Name" and call it; return the network."""
    network = import_name(name, "backbone")(**arguments)
    if not isinstance(getattr(network, "dim", None), int):
        raise UserError(
            f'"{name}" returned a {type(network).__name__} without an integer `dim`. Set `dim` to '
            "the width of its features."
        )
    return network
