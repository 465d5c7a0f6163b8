"""ViT (Dosovitskiy et al. 2020, arXiv:2010.11929) as MoCo v3 trains it (arXiv:2104.02057).

Fixed sin-cos position embeddings, MoCo v3's initialization, a fixed random patch projection, and
ViT-BN. Parameters have timm's names, and load into its models and back.
"""

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from selfsight.errors import UserError
from selfsight.nn import Backbone
from selfsight.nn.batch_norm import BatchNorm

Tokens = Float[Tensor, "n l d"]
Norm = Literal["ln", "bn"]


class PatchEmbed(nn.Module):
    """Linear projection of each patch to a token."""

    def __init__(self, in_channels: int, dim: int, patch: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_channels, dim, patch, stride=patch)

    def forward(self, x: Float[Tensor, "n _ _ _"]) -> Tokens:
        """Return tokens row by row."""
        return self.proj(x).flatten(2).mT


class Attention(nn.Module):
    """Multi-head self-attention."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tokens) -> Tokens:
        """Apply softmax attention with `heads` heads."""
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)  # [N, heads, L, D / heads]
        return self.proj(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Two linear layers with a hidden width four times the input's."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.fc2 = nn.Linear(4 * dim, dim)

    def forward(self, x: Tokens) -> Tokens:
        """Transform each token independently."""
        return self.fc2(F.gelu(self.fc1(x)))


class TokenBatchNorm(nn.Module):
    """Batch norm over images and tokens, with statistics per channel."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.bn = BatchNorm(dim)

    def forward(self, x: Tokens) -> Tokens:
        """Normalize; tokens have channels last, batch norm has them second."""
        return self.bn(x.mT).mT


class Block(nn.Module):
    """Attention, then the MLP, each with a preceding norm and a shortcut."""

    def __init__(self, dim: int, heads: int, mlp_norm: Norm) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(dim, heads)
        self.norm2 = TokenBatchNorm(dim) if mlp_norm == "bn" else nn.LayerNorm(dim, eps=1e-6)
        self.mlp = MLP(dim)

    def forward(self, x: Tokens) -> Tokens:
        """Apply attention and MLP."""
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(Backbone):
    """Patch embedding, position embeddings, blocks; the class token is the feature.

    `mlp_norm="bn"` is ViT-BN: batch norm before each MLP, layer norm elsewhere and at the end.
    """

    pos_embed: Tensor

    def __init__(
        self,
        dim: int,
        depth: int,
        heads: int,
        *,
        patch: int,
        mlp_norm: Norm = "ln",
        in_channels: int = 3,
        image_size: int = 224,
        freeze_patch: bool = True,
    ) -> None:
        super().__init__()
        check_divides_into_patches(image_size, patch)
        self.dim, self.patch = dim, patch
        self.patch_embed = PatchEmbed(in_channels, dim, patch)
        self.patch_embed.requires_grad_(not freeze_patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        side = image_size // patch
        # Computed and not saved, so that weights load at any image size.
        self.register_buffer("pos_embed", sincos_positions(side, side, dim), persistent=False)
        self.blocks = nn.Sequential(*(Block(dim, heads, mlp_norm) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.init_weights()

    def forward(self, x: Float[Tensor, "n _ h w"]) -> Float[Tensor, "n d"]:
        """Return one feature vector per image; any image size that divides into patches."""
        return self.norm(self.blocks(self.embed(x)))[:, 0]

    def last_tokens(self, x: Float[Tensor, "n _ h w"], num_blocks: int) -> list[Tokens]:
        """Return the tokens after each of the last blocks, normalized as the features are."""
        first = len(self.blocks) - num_blocks
        tokens, outputs = self.embed(x), []
        for number, block in enumerate(self.blocks):
            tokens = block(tokens)
            outputs += [self.norm(tokens)] if number >= first else []
        return outputs

    def embed(self, x: Float[Tensor, "n _ h w"]) -> Tokens:
        """Return the class token and the patches, with their positions."""
        for side in x.shape[2:]:
            check_divides_into_patches(side, self.patch)
        height, width = x.shape[2] // self.patch, x.shape[3] // self.patch
        positions = self.pos_embed
        if positions.shape[1] != 1 + height * width or height != width:
            positions = sincos_positions(height, width, self.dim, x.device).to(positions)
        tokens = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), self.patch_embed(x)], dim=1)
        return tokens + positions

    def init_weights(self) -> None:
        """Initialize as MoCo v3: Xavier-uniform, with qkv as three matrices; class token near 0."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                fan_out = module.out_features // (3 if name.endswith("qkv") else 1)
                _xavier_uniform(module, module.in_features, fan_out)
        proj = self.patch_embed.proj
        _xavier_uniform(proj, proj.weight[0].numel(), self.dim)
        nn.init.normal_(self.cls_token, std=1e-6)


def sincos_positions(
    height: int, width: int, dim: int, device: torch.device | None = None
) -> Float[Tensor, "1 l d"]:
    """Return sin-cos embeddings of the patch positions, after a zero row for the class token.

    As in the published code, token t has position (t // height, t % height), which on a square
    grid is (row, column). The first half of the channels encodes the first coordinate.
    """
    if dim % 4:
        raise UserError(
            f"A ViT of width {dim} cannot have 2-D sin-cos positions: use a multiple of 4."
        )
    kind: dict[str, Any] = {"dtype": torch.float64, "device": device}
    frequency = 10000.0 ** -(torch.arange(dim // 4, **kind) / (dim // 4))
    token = torch.arange(height * width, **kind)
    coordinates = (token.div(height, rounding_mode="floor"), token.remainder(height))
    angles = [coordinate[:, None] * frequency for coordinate in coordinates]
    rows = torch.cat([wave(angle) for angle in angles for wave in (torch.sin, torch.cos)], dim=1)
    return torch.cat([rows.new_zeros(1, dim), rows]).float()[None]


def check_divides_into_patches(size: int, patch: int) -> None:
    """Raise a UserError unless images of this size divide into patches."""
    if size % patch:
        raise UserError(
            f"Images of {size} pixels do not divide into patches of {patch}. Use views of "
            f"{max(1, size // patch) * patch} or {(size // patch + 1) * patch} pixels, or a ViT "
            "with another patch size."
        )


def _xavier_uniform(layer: nn.Linear | nn.Conv2d, fan_in: int, fan_out: int) -> None:
    bound = math.sqrt(6 / (fan_in + fan_out))
    nn.init.uniform_(layer.weight, -bound, bound)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
