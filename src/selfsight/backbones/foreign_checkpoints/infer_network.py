"""Infer the network that weights belong to, from their names and shapes."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from selfsight.backbones import BACKBONES, VITS
from selfsight.backbones.foreign_checkpoints import weight_names
from selfsight.backbones.foreign_checkpoints.weight_names import BackboneLocation
from selfsight.backbones.resnet import BasicBlock, Bottleneck, ResNet, Stem
from selfsight.backbones.vit import ViT, check_divides_into_patches, sincos_positions
from selfsight.errors import UserError
from selfsight.nn import Backbone

Weights = Mapping[str, Tensor]
Inferred = tuple[Backbone, dict[str, Any], tuple[str, ...]]  # network, fields of the report, notes

# ViTs with learned positions are taken for DeiT (arXiv:2012.12877): heads of width 64 up to L.
LEARNED_HEADS = {192: 3, 384: 6, 768: 12, 1024: 16, 1280: 16}
FULL_DEPTH = {192: 12, 384: 12, 768: 12, 1024: 24, 1280: 32, 1536: 40}  # blocks at each width
# ResNet-10, 18 and 26, 34 and 50, 101, 152, 200, and selfsight's with three stages.
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
    """A ViT of timm with learned positions, which are resized to the size of the images.

    `gated_mlp` is the MLP of DINOv2's ViT-g: SwiGLU.
    """

    def __init__(self, patch: int, dim: int, *, gated_mlp: bool, **settings: Any) -> None:
        super().__init__()
        from timm.layers import SwiGLUPacked
        from timm.models.vision_transformer import VisionTransformer

        settings |= {"patch_size": patch, "embed_dim": dim, "num_classes": 0}
        settings |= {"dynamic_img_size": True}
        gated = {"mlp_layer": SwiGLUPacked, "act_layer": nn.SiLU} if gated_mlp else {}
        self.patch, self.dim = patch, dim
        # Plain values only, with which timm builds it elsewhere.
        self.arguments = None if gated_mlp else settings
        self.net = VisionTransformer(**settings, **gated)

    def forward(self, x: Float[Tensor, "n _ h w"]) -> Float[Tensor, "n d"]:
        """Return one feature vector per image."""
        for side in x.shape[2:]:
            check_divides_into_patches(side, self.patch)
        return self.net(x)


def infer_network(
    spec: str, weights: Weights, image_size: int | None, *, stem: str | None = None
) -> Inferred:
    """Build the network, whose weights must be loaded; also return report fields and assumptions.

    `stem` is that of a ResNet whose first convolution is 3 x 3; None assumes `lowres`.
    """
    with _WithoutDrawing():
        if not _count_blocks(weights, "blocks"):
            return _resnet(spec, weights, stem)
        if stem is not None:
            raise UserError(f'{spec} holds a ViT, which has no stem "{stem}". Leave --stem out.')
        return _vit(spec, weights, image_size)


class _WithoutDrawing(TorchFunctionMode):
    """Skip the initialization of new weights, which takes longer than loading them."""

    DRAWS = (
        Tensor.normal_,
        Tensor.uniform_,
        nn.init.normal_,
        nn.init.uniform_,
        nn.init.kaiming_uniform_,
    )

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if function in self.DRAWS:
            return args[0] if args else kwargs["tensor"]
        return function(*args, **kwargs)


def infer_solo_learn(
    checkpoint: weight_names.Checkpoint, location: BackboneLocation
) -> dict[str, Any]:
    """Return stem, image size and statistics if this is a ResNet of solo-learn for CIFAR.

    It has a stem of its own for CIFAR-10 and CIFAR-100 only (solo/methods/base.py and
    solo/data/pretrain_dataloader.py); for anything else the result is empty.
    """
    first = checkpoint.get(f"{location.prefix}conv1.weight")
    if (
        weight_names.guess_writer(location.prefix, checkpoint) != weight_names.SOLO_LEARN
        or first is None
    ):
        return {}
    outer = location.prefix.rstrip(".").rpartition(".")[0]
    classifier = checkpoint.get(f"{outer}.classifier.weight".lstrip("."), ())
    mean, std = CIFAR_STATISTICS.get(len(classifier), (None, None))
    small = {"stem": "lowres_pad2", "image_size": 32, "mean": mean, "std": std}
    return small if first.shape[2] == 3 else {}


def find_computed_positions(net: nn.Module, weights: Weights) -> dict[str, str]:
    """Find position embeddings that equal those the ViT computes, and so need not be loaded."""
    positions = weights.get("pos_embed")
    if not isinstance(net, ViT) or positions is None or not _are_sincos(positions):
        return {}
    side = int((positions.shape[1] - 1) ** 0.5)
    return {"pos_embed": f"Its {side} x {side} positions are MoCo v3's sines and cosines."}


def add_class_position(values: dict[str, Tensor], expected: Weights) -> dict[str, Tensor]:
    """Add the class token's position to the token, if the network has only positions of patches.

    DINOv2 saves a position for the class token, and none for the registers; timm's networks with
    registers have positions of patches.
    """
    positions, wanted = values.get("pos_embed"), expected.get("pos_embed")
    if positions is None or wanted is None or positions.shape[1] != wanted.shape[1] + 1:
        return values
    token = values["cls_token"] + positions[:, :1]
    return {**values, "cls_token": token, "pos_embed": positions[:, 1:]}


def _resnet(spec: str, weights: Weights, asked: str | None) -> Inferred:
    first = _require(spec, weights, "conv1.weight")
    kernel, width = first.shape[2], first.shape[0]
    if kernel not in (3, 7):
        raise UserError(
            f"{spec} holds a ResNet whose first convolution is {kernel} x {kernel}; 7 x 7 and "
            f"3 x 3 are known. Name the network that it was made for: timm:NAME={spec}"
        )
    known: tuple[Stem, ...] = ("imagenet",) if kernel == 7 else ("lowres", "half", "lowres_pad2")
    stem = next((stem for stem in known if stem == asked), known[0])
    if asked not in (None, *known):
        raise UserError(
            f'--stem is "{asked}", but the first convolution of {spec} is {kernel} x {kernel}, as '
            f"in {' or '.join(known)}. Give one of them, or leave it out."
        )
    bottleneck = "layer1.0.conv3.weight" in weights
    block = Bottleneck if bottleneck else BasicBlock
    a, b, c, d = (_count_blocks(weights, f"layer{stage}") for stage in (1, 2, 3, 4))
    if (a, b, c, d) not in DEPTHS:
        raise UserError(
            f"{spec} holds a ResNet with {a}, {b}, {c} and {d} blocks in its stages, as no "
            "known ResNet has, so a part of it may be missing. Give a complete file, or name the "
            f"network that it was made for: timm:NAME={spec}"
        )
    network = ResNet(block, (a, b, c, d), width=width, stem=stem, in_channels=first.shape[1])
    notes = (STEM_NOTE,) if kernel == 3 and asked is None else ()
    return network, {"network": _resnet_name(block, (a, b, c, d), width)}, notes


STEM_NOTE = (
    "Its first convolution is 3 x 3: stride 1, padding 1 and no pooling are assumed, since shapes "
    "do not show them. Change it with --stem half (stride 2) or --stem lowres_pad2 (padding 2)."
)
SOLO_LEARN_NOTE = (
    "Its first convolution is 3 x 3: stride 1, padding 2 and no pooling, and images of 32 pixels, "
    "as in solo-learn for CIFAR. Change it with --stem lowres (padding 1) or half (stride 2)."
)
# By the number of classes.
CIFAR_STATISTICS = {
    10: ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    100: ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}


def _resnet_name(block: type[nn.Module], depths: tuple[int, ...], width: int) -> str:
    for name, factory in BACKBONES.items():
        if factory.args == (block, depths) and factory.keywords.get("width", 64) == width:
            return name
    layers = (3 if block is Bottleneck else 2) * sum(depths) + 2
    return f"resnet{layers}" + (f" of width {width}" if width != 64 else "")


def _vit(spec: str, weights: Weights, image_size: int | None) -> Inferred:
    patches = _require(spec, weights, "patch_embed.proj.weight")
    dim, channels, patch = patches.shape[0], patches.shape[1], patches.shape[2]
    depth = _count_blocks(weights, "blocks")
    if depth < (full := FULL_DEPTH.get(dim, 1)):
        raise UserError(
            f"{spec} holds a ViT of width {dim} with {depth} blocks instead of {full}, so a part "
            "of it may be missing. Give a complete file, or name the network that it was made "
            f"for: timm:NAME={spec}"
        )
    positions = weights.get("pos_embed")
    _require(spec, weights, "cls_token")
    registers = weights["reg_token"].shape[1] if "reg_token" in weights else 0
    side, prefix = _grid(positions, registers) if positions is not None else (224 // patch, 1)
    size = image_size or side * patch
    check_divides_into_patches(size, patch)
    letter = next((s for s, shape in VITS.items() if shape[:2] == (dim, depth)), None)
    batch_norm = "blocks.0.norm2.bn.weight" in weights
    if positions is None or _are_sincos(positions):
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
        family = "MoCo v3"
    else:
        heads = LEARNED_HEADS.get(dim, max(1, dim // 64))
        hidden = _require(spec, weights, "blocks.0.mlp.fc1.weight").shape[0]
        network = LearnedViT(
            patch,
            dim,
            gated_mlp=hidden == 2 * _require(spec, weights, "blocks.0.mlp.fc2.weight").shape[1],
            reg_tokens=registers,
            no_embed_class=prefix < 1 + registers,
            img_size=side * patch,
            in_chans=channels,
            depth=depth,
            num_heads=heads,
            mlp_ratio=hidden / dim,
            qkv_bias="blocks.0.attn.qkv.bias" in weights,
            init_values=1.0 if "blocks.0.ls1.gamma" in weights else None,
        )
        family = "DeiT"
    name = f"vit_{'bn_' if batch_norm else ''}{letter}{patch}" if letter else f"ViT {dim} wide"
    name += f" with {registers} registers" if registers else ""
    note = f"{heads} heads are assumed, as in {family} at this width; shapes do not show them."
    return network, {"network": name, "image_size": size}, (note,)


def _grid(positions: Tensor, registers: int) -> tuple[int, int]:
    """Return the side of the grid of positions, and how many come before it.

    Before those of the patches there may be one for the class token, and some for the registers.
    """
    for prefix in (1, 0, 1 + registers):
        side = round((positions.shape[1] - prefix) ** 0.5)
        if side * side == positions.shape[1] - prefix:
            return side, prefix
    return int(positions.shape[1] ** 0.5), 1


def _are_sincos(positions: Tensor) -> bool:
    """Return whether these positions are the sines and cosines of MoCo v3."""
    side = int((positions.shape[1] - 1) ** 0.5)
    if 1 + side * side != positions.shape[1] or positions.shape[2] % 4:
        return False
    ours = sincos_positions(side, side, positions.shape[2])
    return torch.allclose(positions.float(), ours, rtol=0, atol=1e-3)


def _count_blocks(weights: Weights, stage: str) -> int:
    """Count the blocks of a stage."""
    return len({n.split(".")[1] for n in weights if re.match(rf"{stage}\.\d+\.", n)})


def _require(spec: str, weights: Weights, name: str) -> Tensor:
    if name not in weights:
        raise UserError(
            f"{spec} lacks {name}, which is required. Give a complete file, or "
            f"name the network that it was made for: timm:NAME={spec}"
        )
    return weights[name]
