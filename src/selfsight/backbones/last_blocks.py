"""Features of a ViT's last blocks, as DINOv2 evaluates them (arXiv:2304.07193, section 7.1)."""

import inspect
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from selfsight.backbones.vit import ViT
from selfsight.errors import UserError


class LastBlocks(nn.Module):
    """A ViT whose feature is the class tokens of its last blocks, each after the final norm.

    With `patch_mean` the mean of the patch tokens of the last block (not registers) is appended.
    DINOv2 reports the best of 1 and 4 blocks, with and without the mean.
    """

    def __init__(self, backbone: nn.Module, num_blocks: int, *, patch_mean: bool = False) -> None:
        super().__init__()
        depth = _count_blocks(backbone)
        if not 1 <= num_blocks <= depth:
            raise UserError(
                f"--last-blocks is {num_blocks}, but the network has {depth} blocks. Give a number "
                f"from 1 to {depth}."
            )
        self.backbone, self.num_blocks, self.patch_mean = backbone, num_blocks, patch_mean
        width = backbone.dim if isinstance(backbone, ViT) else _timm_net(backbone).embed_dim
        self.dim = (num_blocks + patch_mean) * width

    def forward(self, x: Float[Tensor, "n _ _ _"]) -> Float[Tensor, "n d"]:
        """Return one feature vector per image: the earliest block first, the patch mean last."""
        if isinstance(self.backbone, ViT):
            tokens = self.backbone.last_tokens(x, self.num_blocks)
            pairs = [(t[:, 1:], t[:, :1]) for t in tokens]
        else:
            pairs = _timm_net(self.backbone).forward_intermediates(
                x,
                indices=self.num_blocks,
                return_prefix_tokens=True,
                norm=True,
                output_fmt="NLC",
                intermediates_only=True,
            )
        parts = [prefix[:, 0] for _, prefix in pairs]  # [N, D] each
        parts += [pairs[-1][0].mean(dim=1)] if self.patch_mean else []
        return torch.cat(parts, dim=1)


def _count_blocks(backbone: nn.Module) -> int:
    """Count the blocks; raise a UserError for a network without class token and blocks."""
    if isinstance(backbone, ViT):
        return len(backbone.blocks)
    net = _timm_net(backbone)
    forward = getattr(net, "forward_intermediates", None)
    takes = inspect.signature(forward).parameters if forward else {}
    if getattr(net, "cls_token", None) is None or "return_prefix_tokens" not in takes:
        raise UserError(
            f"--last-blocks needs the class token and the blocks of a ViT, and a "
            f"{type(net).__name__} has none that are known. Leave it out, or evaluate a ViT; a "
            "ViT's file of weights is given without a network's name."
        )
    return len(net.blocks)


def _timm_net(backbone: nn.Module) -> Any:
    """The network of timm in a backbone."""
    return getattr(backbone, "net", backbone)
