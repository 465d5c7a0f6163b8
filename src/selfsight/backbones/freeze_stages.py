"""Freeze the first stages of a ResNet, or the first blocks of a ViT."""

from torch import nn

from selfsight.backbones.layer_depths import is_final, layer_depths
from selfsight.errors import UserError


def freeze_stages(backbone: nn.Module, count: int) -> None:
    """Freeze the stem and the first stages of a ResNet, or the first blocks of a ViT.

    Their batch norms stay in evaluation mode: running statistics do not move either.
    """
    if not count:
        return
    depths = layer_depths(backbone, stages=True)
    # Final layers that follow the last stage, such as the norm of a ViT, are no stage.
    stages = [depth for name, depth in depths.items() if not is_final(name)]
    most = max(stages, default=0) - 1
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
