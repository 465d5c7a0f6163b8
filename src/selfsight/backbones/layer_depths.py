"""The depth of each parameter of a backbone, and freezing its first stages."""

import re
from typing import Any

from torch import nn

from selfsight.errors import UserError


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
    return (2, 0, 0) if re.match(r"(net\.)?(norm|ln|head|fc)", name) else (0, 0, 0)


def freeze_stages(backbone: nn.Module, count: int) -> None:
    """Freeze the stem and the first stages of a ResNet, or the first blocks of a ViT.

    Their batch norms stay in evaluation mode: running statistics do not move either.
    """
    if not count:
        return
    depths = layer_depths(backbone, stages=True)
    most = max(depths.values(), default=0) - 1
    if count > most:
        allowed = f"Use 1 to {most}" if most > 0 else "Leave it out"
        raise UserError(
            f"start.freeze is {count}, but the network has {most + 1} stages after its stem, and "
            f"the last one must be trained. {allowed}."
        )
    for path, module in backbone.named_modules():
        for name, parameter in module.named_parameters(path, recurse=False):
            if depths[name] <= count:
                parameter.requires_grad_(False)
                module.eval()
