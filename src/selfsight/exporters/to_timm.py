"""A folder that timm opens as `local-dir:`, in the format of its models on Hugging Face."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from selfsight.errors import UserError
from selfsight.exporters.exported_encoder import (
    WEIGHTS,
    ExportedEncoder,
    add_positions,
    find_shape_gap,
    save_weights,
)
from selfsight.exporters.network_shape import LibraryNet, NetworkShape, ResNetShape, ViTShape
from selfsight.run_files.json_files import write_json


def find_gap(shape: NetworkShape) -> str | None:
    """Say why timm cannot build this network; None if it can."""
    return find_shape_gap(shape, "timm")


def write(encoder: ExportedEncoder, folder: Path) -> str:
    """Write the folder; return the lines that load it."""
    shape, classes = encoder.shape, encoder.num_classes
    name, arguments = _timm_network(shape)
    arguments = arguments | ({"num_classes": classes} if classes else {})
    weights = add_positions(encoder) | encoder.head_weights(_head_name(encoder, name, arguments))
    save_weights(weights, folder)
    transform = _timm_transform(encoder)
    if not isinstance(shape, ResNetShape) or shape.stem == "imagenet":
        # Without `first_conv`, timm would adapt the first convolution to other than 3 channels.
        published = transform | {"first_conv": None, "num_classes": classes}
        config = {"architecture": name, "num_classes": classes, "model_args": arguments}
        config |= {} if encoder.head is None else {"label_names": list(encoder.head.class_names)}
        write_json(folder / "config.json", config | {"pretrained_cfg": published})
        return (
            f"{encoder.class_import}import timm\n{encoder.image_import}\n\n"
            'model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()  # strict\n'
            + encoder.transform_lines(
                "transform = timm.data.create_transform(**timm.data.resolve_data_config({}, "
                "model=model))"
            )
            + f"\n{encoder.image_line}\n{encoder.output_lines('model(transform(image)[None])')}"
        )
    given = "".join(f", {key}={value!r}" for key, value in arguments.items() if key != "in_chans")
    settings = ", ".join(f"{key}={value!r}" for key, value in transform.items())
    return (
        f"{encoder.class_import}import timm\nimport torch\n{encoder.image_import}\n"
        "from safetensors.torch import load_file\n\n"
        f'model = timm.create_model("{name}"{given})\n{shape.replaced_stem()}\n'
        f'model.load_state_dict(load_file(f"{{folder}}/{WEIGHTS}"))  # strict\nmodel.eval()\n'
        + encoder.transform_lines(f"transform = timm.data.create_transform({settings})")
        + f"\n{encoder.image_line}\n{encoder.output_lines('model(transform(image)[None])')}"
    )


def _head_name(encoder: ExportedEncoder, name: str, arguments: dict[str, Any]) -> str:
    """The layer that timm builds for `num_classes`."""
    if encoder.head is None or isinstance(encoder.shape, ResNetShape):
        return "fc"
    if isinstance(encoder.shape, ViTShape):
        return "head"
    import timm

    with torch.device("meta"):
        net = timm.create_model(name, **arguments)
    last = net.get_classifier()
    if not isinstance(last, nn.Linear) or last.in_features != encoder.head.linear.in_features:
        raise UserError(
            f"--to timm cannot hold this classifier: the last layer of timm's {name} is not a "
            "linear one of its features. Use --to safetensors or --to onnx."
        )
    return next(child for child, module in net.named_modules() if module is last)


def _timm_network(shape: NetworkShape) -> tuple[str, dict[str, Any]]:
    """The name and the arguments by which timm builds the network."""
    if isinstance(shape, LibraryNet):
        return shape.name, shape.arguments
    if isinstance(shape, ResNetShape):
        name = "resnet18" if shape.block == "BasicBlock" else "resnet50"
        usual = {"resnet18": (2, 2, 2, 2), "resnet50": (3, 4, 6, 3)}[name]
        layers = {} if shape.depths == usual else {"layers": list(shape.depths)}
        return name, {"num_classes": 0, "in_chans": shape.channels} | layers
    assert isinstance(shape, ViTShape)
    return "vit_base_patch16_224", {
        "num_classes": 0,
        "in_chans": shape.channels,
        "img_size": shape.image_size,
        "patch_size": shape.patch,
        "embed_dim": shape.dim,
        "depth": shape.depth,
        "num_heads": shape.heads,
    }


def _timm_transform(encoder: ExportedEncoder) -> dict[str, Any]:
    transform, (mean, std) = encoder.transform, encoder.statistics
    return {
        "input_size": [transform.channels, transform.size, transform.size],
        "crop_pct": transform.crop_share,
        "crop_mode": "center" if transform.keep_aspect else "squash",
        "interpolation": transform.interpolation,
        "mean": mean,
        "std": std,
    }
