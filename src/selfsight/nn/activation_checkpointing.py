"""The residual and transformer blocks of a backbone: compiled one by one, or recomputed.

With activation checkpointing (Chen et al. 2016, arXiv:1604.06174) only the input of each block is
stored for the backward pass, which computes the block again: less memory, a second forward pass.
"""

from collections import OrderedDict
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from selfsight.errors import UserError
from selfsight.nn.chunked_encoder import batch_norms, encode_chunk
from selfsight.nn.encoder import encoders


class RecomputedBlocks(nn.Sequential):
    """Blocks one after another, each computed again in the backward pass."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply all blocks; nothing is stored if there is no backward pass."""
        for block in self:
            x = recompute(block, x) if torch.is_grad_enabled() else block(x)
        return x


def recompute(block: nn.Module, x: Tensor) -> Tensor:
    """Compute block(x) and store x alone; batch norm tracks its statistics once."""
    norms = [norm for norm in batch_norms(block) if norm.training]
    run = partial(encode_chunk, block, norms)
    out, collected = checkpoint(run, x, use_reentrant=False)
    for norm, statistics in zip(norms, collected, strict=True):
        for batch in statistics:  # one for each call
            norm.track(batch)
    return out


def find_stages(network: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Yield parent and name of every sequence of blocks: of one class, and made of layers.

    Such are `layer1` to `layer4` of a ResNet and `blocks` of a ViT, here, in torchvision and timm.
    """
    for name, child in network.named_children():
        inner = list(find_stages(child))
        yield from inner
        if not inner and type(child) in (nn.Sequential, RecomputedBlocks) and _are_blocks(child):
            yield network, name


def _are_blocks(sequence: nn.Module) -> bool:
    modules = list(sequence.children())
    one_class = len({type(module) for module in modules}) == 1
    return one_class and all(any(module.children()) for module in modules)


def find_blocks(network: nn.Module) -> list[nn.Module]:
    """All blocks of a network, in order."""
    return [block for parent, name in find_stages(network) for block in getattr(parent, name)]


def recompute_blocks(method: nn.Module) -> None:
    """Let the backbones of a method recompute their blocks; state-dict keys do not change."""
    for encoder in encoders(method):
        for parent, name in list(find_stages(encoder.backbone)):
            blocks = OrderedDict(getattr(parent, name).named_children())
            setattr(parent, name, RecomputedBlocks(blocks))


def check_blocks(backbone: nn.Module, setting: str) -> None:
    """Raise a UserError for a backbone without blocks."""
    if not find_blocks(backbone):
        raise UserError(
            f"{setting} is set, but {type(backbone).__name__} has no blocks: sequences "
            "(nn.Sequential) of modules of one class. Use a ResNet or a ViT, or leave it out."
        )
