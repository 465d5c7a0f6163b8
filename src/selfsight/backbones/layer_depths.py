"""The depth of each parameter of a backbone, by which learning rates decay and stages freeze."""

import re
from typing import Any

from torch import nn


def layer_depths(backbone: nn.Module, *, stages: bool = False) -> dict[str, int]:
    """Map each parameter's name to its layer, from 0 at the stem; timm's grouping for its nets.

    With `stages` the blocks of a stage, as of a ResNet, have one number.
    """
    net: Any = getattr(backbone, "net", backbone)
    prefix = "" if net is backbone else "net."
    if hasattr(net, "group_matcher"):
        from timm.models import group_parameters  # importing timm takes a second

        groups = group_parameters(net, net.group_matcher(coarse=stages), reverse=True)
        return {prefix + name: int(layer) for name, layer in groups.items()}
    positions = {name: _position(name, stages) for name, _ in backbone.named_parameters()}
    order = sorted(set(positions.values()))
    return {name: order.index(position) for name, position in positions.items()}


def _position(name: str, stages: bool) -> tuple[int, int, int]:
    """Sort key of a parameter: the stem, then the blocks in order, then the final layers."""
    block = re.search(r"(?:layer|stages?\.|blocks\.|layers\.)(\d+)(?:\.(\d+))?", name)
    if block:
        return 1, int(block[1]), 0 if stages else int(block[2] or 0)
    return (2, 0, 0) if is_final(name) else (0, 0, 0)


def is_final(name: str) -> bool:
    """Whether a parameter is of the layers that follow all blocks."""
    return re.match(r"(net\.)?(norm|ln|head|fc)", name) is not None
