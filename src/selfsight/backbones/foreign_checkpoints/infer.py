"""The network that a table of named weights belongs to, from their shapes."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from selfsight.backbones import BACKBONES, VITS
from selfsight.backbones.resnet import Basic, Bottleneck, ResNet, Stem
from selfsight.backbones.vit import ViT, positions, refuse_size
from selfsight.errors import UserError
from selfsight.nn import Backbone

Weights = Mapping[str, Tensor]
Found = tuple[Backbone, dict[str, Any], tuple[str, ...]]  # network, facts for the report, notes

# Learned positions are of the DeiT family (arXiv:2012.12877), whose heads are 64 wide up to L.
LEARNED_HEADS = {192: 3, 384: 6, 768: 12, 1024: 16, 1280: 16}
FULL_DEPTH = {192: 12, 384: 12, 768: 12, 1024: 24, 1280: 32}  # blocks at each width
# ResNet-10, 18 and 26, 34 and 50, 101, 152, 200, and ours with three stages.
DEPTHS = {
    (1, 1, 1, 1),
    (2, 2, 2, 2),
    (3, 4, 6, 3),
    (3, 4, 23, 3),
    (3, 8, 36, 3),
    (3, 24, 36, 3),
    (1, 1, 1, 0),
}
COMPUTED_HEADS = {dim: heads for dim, _, heads in VITS.values()} | {192: 3}


class LearnedViT(Backbone):
    """A ViT of timm with learned positions, which are resized to the images it is shown."""

    def __init__(self, patch: int, dim: int, **settings: Any) -> None:
        super().__init__()
        from timm.models.vision_transformer import VisionTransformer

        self.patch, self.dim = patch, dim
        self.net = VisionTransformer(
            patch_size=patch, embed_dim=dim, num_classes=0, dynamic_img_size=True, **settings
        )

    def forward(self, x: Float[Tensor, "n _ h w"]) -> Float[Tensor, "n d"]:
        """One feature row for each image."""
        for side in x.shape[2:]:
            refuse_size(side, self.patch)
        return self.net(x)


def network_for(word: str, weights: Weights, image_size: int | None) -> Found:
    """The network with fresh weights, what the report says of it, and what shapes cannot tell."""
    return _vit(word, weights, image_size) if _depth(weights, "blocks") else _resnet(word, weights)


def settled_positions(net: nn.Module, weights: Weights) -> dict[str, str]:
    """Positions in a file that equal those our ViT computes, and so need no place in it."""
    where = weights.get("pos_embed")
    if not isinstance(net, ViT) or where is None or not _computed(where):
        return {}
    side = int((where.shape[1] - 1) ** 0.5)
    return {"pos_embed": f"Its {side} x {side} positions are MoCo v3's sines and cosines."}


def _resnet(word: str, weights: Weights) -> Found:
    first = _needed(word, weights, "conv1.weight")
    kernel, width = first.shape[2], first.shape[0]
    if kernel not in (3, 7):
        raise UserError(
            f"{word} holds a ResNet whose first convolution is {kernel} x {kernel}; 7 x 7 and "
            f"3 x 3 are known. Name the network that it was made for: timm:NAME={word}"
        )
    stem: Stem = "imagenet" if kernel == 7 else "lowres"
    bottleneck = "layer1.0.conv3.weight" in weights
    block = Bottleneck if bottleneck else Basic
    a, b, c, d = (_depth(weights, f"layer{stage}") for stage in (1, 2, 3, 4))
    if (a, b, c, d) not in DEPTHS:
        raise UserError(
            f"{word} holds a ResNet with {a}, {b}, {c} and {d} blocks in its stages, as none that "
            "is known has, so a part of it may be missing. Give a complete file, or name the "
            f"network that it was made for: timm:NAME={word}"
        )
    network = ResNet(block, (a, b, c, d), width=width, stem=stem, in_channels=first.shape[1])
    notes = () if kernel == 7 else (STEM_NOTE,)
    return network, {"network": _resnet_name(block, (a, b, c, d), width)}, notes


STEM_NOTE = (
    "Its first convolution is 3 x 3: stride 1, a border of 1 and no pooling are taken, which "
    "shapes cannot tell (solo-learn's has a border of 2)."
)


def _resnet_name(block: type[nn.Module], depths: tuple[int, ...], width: int) -> str:
    for name, make in BACKBONES.items():
        if make.args == (block, depths) and make.keywords.get("width", 64) == width:
            return name
    layers = (3 if block is Bottleneck else 2) * sum(depths) + 2
    return f"resnet{layers}" + (f" of width {width}" if width != 64 else "")


def _vit(word: str, weights: Weights, image_size: int | None) -> Found:
    patches = _needed(word, weights, "patch_embed.proj.weight")
    dim, channels, patch = patches.shape[0], patches.shape[1], patches.shape[2]
    depth = _depth(weights, "blocks")
    if depth < (full := FULL_DEPTH.get(dim, 1)):
        raise UserError(
            f"{word} holds a ViT {dim} wide with {depth} blocks, where such have {full}, so a part "
            "of it may be missing. Give a complete file, or name the network that it was made "
            f"for: timm:NAME={word}"
        )
    where = weights.get("pos_embed")
    _needed(word, weights, "cls_token")
    side = 224 // patch if where is None else int((where.shape[1] - 1) ** 0.5)
    size = image_size or side * patch
    refuse_size(size, patch)
    letter = next((s for s, made in VITS.items() if made[:2] == (dim, depth)), None)
    batch_norm = "blocks.0.norm2.bn.weight" in weights
    if where is None or _computed(where):
        heads = COMPUTED_HEADS.get(dim, max(1, dim // 64))
        network: Backbone = ViT(
            dim,
            depth,
            heads,
            patch=patch,
            mlp_norm="bn" if batch_norm else "ln",
            in_channels=channels,
            image_size=size,
            freeze_patch=False,
        )
        kind = "MoCo v3"
    else:
        heads = LEARNED_HEADS.get(dim, max(1, dim // 64))
        hidden = _needed(word, weights, "blocks.0.mlp.fc1.weight").shape[0]
        network = LearnedViT(
            patch,
            dim,
            img_size=side * patch,
            in_chans=channels,
            depth=depth,
            num_heads=heads,
            mlp_ratio=hidden / dim,
            qkv_bias="blocks.0.attn.qkv.bias" in weights,
            init_values=1.0 if "blocks.0.ls1.gamma" in weights else None,
        )
        kind = "DeiT"
    name = f"vit_{'bn_' if batch_norm else ''}{letter}{patch}" if letter else f"ViT {dim} wide"
    note = f"It has {heads} heads, as {kind}'s has at this width; shapes cannot tell."
    return network, {"network": name, "image_size": size}, (note,)


def _computed(where: Tensor) -> bool:
    """Whether these positions are the sines and cosines of MoCo v3."""
    side = int((where.shape[1] - 1) ** 0.5)
    if 1 + side * side != where.shape[1] or where.shape[2] % 4:
        return False
    ours = positions(side, side, where.shape[2])
    return torch.allclose(where.float(), ours, rtol=0, atol=1e-3)


def _depth(weights: Weights, stage: str) -> int:
    """How many blocks a stage has."""
    return len({n.split(".")[1] for n in weights if re.match(rf"{stage}\.\d+\.", n)})


def _needed(word: str, weights: Weights, name: str) -> Tensor:
    if name not in weights:
        raise UserError(
            f"{word} lacks {name}, without which the rest is of no use. Give a complete file, or "
            f"name the network that it was made for: timm:NAME={word}"
        )
    return weights[name]
