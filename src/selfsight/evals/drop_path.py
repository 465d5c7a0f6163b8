"""DropPath (stochastic depth, arXiv:1603.09382) for any backbone of this package or of timm.

timm's DropPath samples from torch's global state. Here samples depend on (seed, step, row of the
global batch), so that training is equal on any number of processes and after a restart.
"""

from collections.abc import Iterable

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from selfsight import rng
from selfsight.backbones.resnet import BasicBlock, Bottleneck
from selfsight.backbones.vit import Block


class DropPath(nn.Module):
    """Zero a residual branch for some rows of the batch, in training mode.

    `set_rows` samples before each step. A compiled network reads the samples as an input; a step
    number that it reads would be a constant of the compiled code.
    """

    def __init__(self, rate: float, number: int) -> None:
        super().__init__()
        self.rate, self.number = rate, number
        self.samples = torch.zeros(0, 1, dtype=torch.float64)  # uniform, one per row

    def forward(self, x: Float[Tensor, "n *rest"]) -> Float[Tensor, "n *rest"]:
        """Drop some rows and scale up the others, which preserves the mean."""
        if not (self.training and self.rate):
            return x
        scale = (self.samples >= self.rate).to(x.dtype) / (1 - self.rate)
        return x * scale.view(-1, *[1] * (x.ndim - 1))


def add_drop_path(backbone: nn.Module, rate: float) -> list[DropPath]:
    """Add DropPath to every residual branch, rising from 0 to `rate` with depth.

    Returns the added modules: none for a network whose branches are not known. Known are our ViTs
    and ResNets, and timm's networks by the names of their own DropPath.
    """
    if not rate:
        return []
    blocks = [m for m in backbone.modules() if _branches(m)]
    added: list[DropPath] = []
    for number, block in enumerate(blocks):
        for name in _branches(block):
            drop = DropPath(rate * number / max(1, len(blocks) - 1), len(added))
            replaces = name.startswith("drop_path")
            setattr(block, name, drop if replaces else nn.Sequential(getattr(block, name), drop))
            added.append(drop)
    return added


def set_rows(drops: Iterable[DropPath], rows: Int64[Tensor, " n"], *, seed: int, step: int) -> None:
    """Sample for the rows of the global batch that the next forward pass computes."""
    for drop in drops:
        drop.samples = rng.uniform(rng.key(seed, "drop_path", drop.number), rows, 1, step)


def _branches(module: nn.Module) -> list[str]:
    if isinstance(module, Block):
        return ["attn", "mlp"]
    if isinstance(module, BasicBlock):
        return ["bn2"]
    if isinstance(module, Bottleneck):
        return ["bn3"]
    return [n for n in ("drop_path", "drop_path1", "drop_path2") if hasattr(module, n)]
