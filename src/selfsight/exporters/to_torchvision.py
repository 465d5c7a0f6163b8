"""A state dict that torchvision's own networks load."""

from pathlib import Path

import torch

from selfsight.backbones.library_weight_names import TORCHVISION_VIT, to_theirs
from selfsight.exporters.exported_encoder import (
    ExportedEncoder,
    add_positions,
    find_shape_gap,
)
from selfsight.exporters.network_shape import LibraryNet, NetworkShape, OtherNet, ResNetShape
from selfsight.run_files.json_files import replace_file

FILE = "model.pth"
NAMED = ((2, 2, 2, 2), (3, 4, 6, 3), (3, 4, 23, 3), (3, 8, 36, 3))


def find_gap(shape: NetworkShape) -> str | None:
    """Say what torchvision has no network for; None if it has."""
    return find_shape_gap(shape, "torchvision")


def write(encoder: ExportedEncoder, folder: Path) -> str:
    """Write the folder; return the lines that load it."""
    weights = add_positions(encoder)
    if not isinstance(encoder.shape, ResNetShape | LibraryNet):
        weights = {to_theirs(name, TORCHVISION_VIT): value for name, value in weights.items()}
    with replace_file(folder / FILE) as file:
        torch.save(weights, file)
    mean, std = encoder.statistics
    return (
        f"import torch\nimport torchvision\n{encoder.image_import}\n"
        "from torchvision.transforms import v2\n\n"
        f"{_build_lines(encoder.shape)}\n"
        f'model.load_state_dict(torch.load(f"{{folder}}/{FILE}", weights_only=True))  # strict\n'
        "model.eval()\n"
        + encoder.transform_lines(
            f"mean, std = {mean}, {std}\ncrop = v2.Compose([{encoder.crop_steps}])\n"
            "transform = v2.Compose([crop, v2.ToDtype(torch.float32, scale=True), "
            "v2.Normalize(mean, std)])"
        )
        + f"\n{encoder.image_line}\nfeatures = model(transform(image)[None])"
    )


def _build_lines(shape: NetworkShape) -> str:
    if isinstance(shape, LibraryNet):
        return shape.build_lines()[1]
    if isinstance(shape, ResNetShape):
        build = f"torchvision.models.{shape.name}()"
        if shape.depths not in NAMED:
            block = f"torchvision.models.resnet.{shape.block}"
            build = f"torchvision.models.ResNet({block}, {list(shape.depths)})"
        lines = ["model = " + build, "model.fc = torch.nn.Identity()", shape.replaced_stem()]
        return "\n".join(line for line in lines if line)
    assert not isinstance(shape, OtherNet)
    lines = [
        f"model = torchvision.models.VisionTransformer(image_size={shape.image_size}, "
        f"patch_size={shape.patch},",
        f"    num_layers={shape.depth}, num_heads={shape.heads}, hidden_dim={shape.dim}, "
        f"mlp_dim={4 * shape.dim})",
        "model.heads = torch.nn.Identity()",
    ]
    if shape.channels != 3:
        conv = f"torch.nn.Conv2d({shape.channels}, {shape.dim}, {shape.patch}, {shape.patch})"
        lines.append(f"model.conv_proj = {conv}")
    return "\n".join(lines)
