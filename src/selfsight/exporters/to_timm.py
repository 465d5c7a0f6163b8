"""A folder that timm opens as `local-dir:`, in the format of its models on Hugging Face."""

from pathlib import Path
from typing import Any

from selfsight.exporters.exported_encoder import (
    WEIGHTS,
    ExportedEncoder,
    add_positions,
    find_shape_gap,
    save_weights,
)
from selfsight.exporters.network_shape import (
    LibraryNet,
    NetworkShape,
    ResNetShape,
    ViTShape,
)
from selfsight.run_files.json_files import write_json


def find_gap(shape: NetworkShape) -> str | None:
    """Say what timm has no network for; None if it has."""
    return find_shape_gap(shape, "timm")


def write(encoder: ExportedEncoder, folder: Path) -> str:
    """Write the folder; return the lines that load it."""
    save_weights(add_positions(encoder), folder)
    shape = encoder.shape
    name, arguments = _timm_network(shape)
    transform = _timm_transform(encoder)
    if not isinstance(shape, ResNetShape) or shape.stem == "imagenet":
        # Without `first_conv`, timm would adapt the first convolution to other than 3 channels.
        published = transform | {"first_conv": None, "num_classes": 0}
        config = {"architecture": name, "num_classes": 0, "model_args": arguments}
        write_json(folder / "config.json", config | {"pretrained_cfg": published})
        return (
            f"import timm\n{encoder.image_import}\n\n"
            'model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()  # strict\n'
            + encoder.transform_lines(
                "transform = timm.data.create_transform(**timm.data.resolve_data_config({}, "
                "model=model))"
            )
            + f"\n{encoder.image_line}\nfeatures = model(transform(image)[None])"
        )
    given = "".join(f", {key}={value!r}" for key, value in arguments.items() if key != "in_chans")
    settings = ", ".join(f"{key}={value!r}" for key, value in transform.items())
    return (
        f"import timm\nimport torch\n{encoder.image_import}\n"
        "from safetensors.torch import load_file\n\n"
        f'model = timm.create_model("{name}"{given})\n{shape.replaced_stem()}\n'
        f'model.load_state_dict(load_file(f"{{folder}}/{WEIGHTS}"))  # strict\nmodel.eval()\n'
        + encoder.transform_lines(f"transform = timm.data.create_transform({settings})")
        + f"\n{encoder.image_line}\nfeatures = model(transform(image)[None])"
    )


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
