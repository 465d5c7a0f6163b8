"""A state dict that torchvision's own networks load."""

from pathlib import Path

import torch

from selfsight.backbones.library_weight_names import TORCHVISION_VIT, to_theirs
from selfsight.exporters.exported_encoder import ExportedEncoder, add_positions, find_shape_gap
from selfsight.exporters.network_shape import LibraryNet, NetworkShape, OtherNet, ResNetShape
from selfsight.run_files.json_files import replace_file

FILE = "model.pth"
NAMED = ((2, 2, 2, 2), (3, 4, 6, 3), (3, 4, 23, 3), (3, 8, 36, 3))


def find_gap(shape: NetworkShape) -> str | None:
    """Say why torchvision cannot build this network; None if it can."""
    return find_shape_gap(shape, "torchvision")


def write(encoder: ExportedEncoder, folder: Path) -> str:
    """Write the folder; return the lines that load it."""
    weights = add_positions(encoder)
    if not isinstance(encoder.shape, ResNetShape | LibraryNet):
        weights = {to_theirs(name, TORCHVISION_VIT): value for name, value in weights.items()}
    weights |= encoder.head_weights(_head_name(encoder.shape))
    with replace_file(folder / FILE) as file:
        torch.save(weights, file)
    mean, std = encoder.statistics
    return (
        f"{encoder.class_import}import torch\nimport torchvision\n{encoder.image_import}\n"
        "from torchvision.transforms import v2\n\n"
        f"{_build_lines(encoder.shape, encoder.num_classes)}\n"
        f'model.load_state_dict(torch.load(f"{{folder}}/{FILE}", weights_only=True))  # strict\n'
        "model.eval()\n"
        + encoder.transform_lines(
            f"mean, std = {mean}, {std}\ncrop = v2.Compose([{encoder.crop_steps}])\n"
            "transform = v2.Compose([crop, v2.ToDtype(torch.float32, scale=True), "
            "v2.Normalize(mean, std)])"
        )
        + f"\n{encoder.image_line}\n{encoder.output_lines('model(transform(image)[None])')}"
    )


def _head_name(shape: NetworkShape) -> str:
    """The layer that torchvision builds for `num_classes`."""
    if isinstance(shape, LibraryNet):
        return shape.head
    return "fc" if isinstance(shape, ResNetShape) else "heads.head"


def _build_lines(shape: NetworkShape, num_classes: int) -> str:
    """The lines that build the network, without a last layer if there are no classes."""
    classes = f"num_classes={num_classes}" if num_classes else ""
    if isinstance(shape, LibraryNet):
        return shape.build_lines(num_classes)[1]
    if isinstance(shape, ResNetShape):
        build = f"torchvision.models.{shape.name}({classes})"
        if shape.depths not in NAMED:
            block = f"torchvision.models.resnet.{shape.block}"
            given = ", ".join(filter(None, (block, str(list(shape.depths)), classes)))
            build = f"torchvision.models.ResNet({given})"
        without = "" if num_classes else "model.fc = torch.nn.Identity()"
        lines = ["model = " + build, without, shape.replaced_stem()]
        return "\n".join(line for line in lines if line)
    assert not isinstance(shape, OtherNet)
    lines = [
        f"model = torchvision.models.VisionTransformer(image_size={shape.image_size}, "
        f"patch_size={shape.patch},",
        f"    num_layers={shape.depth}, num_heads={shape.heads}, hidden_dim={shape.dim}, "
        f"mlp_dim={4 * shape.dim}{', ' + classes if classes else ''})",
    ]
    lines += [] if num_classes else ["model.heads = torch.nn.Identity()"]
    if shape.channels != 3:
        conv = f"torch.nn.Conv2d({shape.channels}, {shape.dim}, {shape.patch}, {shape.patch})"
        lines.append(f"model.conv_proj = {conv}")
    return "\n".join(lines)
