"""Weights alone, in the names of torchvision's ResNet or timm's ViT, loaded with selfsight."""

from pathlib import Path

from selfsight.exporters.exported_encoder import WEIGHTS, ExportedEncoder, save_weights
from selfsight.exporters.network_shape import NetworkShape, OtherNet


def find_gap(shape: NetworkShape) -> str | None:
    """None: any weights are written."""
    return None


def write(encoder: ExportedEncoder, folder: Path) -> str:
    """Write the folder; return the lines that load it."""
    save_weights(encoder.weights, folder)
    if isinstance(encoder.shape, OtherNet):
        return (
            "from safetensors.torch import load_file\n\n"
            f'weights = load_file(f"{{folder}}/{WEIGHTS}")  # of {encoder.shape.name}'
        )
    transform, (imports, build) = encoder.transform, encoder.shape.build_lines()
    settings = transform.cropping | {"mean": transform.mean, "std": transform.std}
    if not transform.has_bytes:
        settings |= {"low": transform.low, "high": transform.high}
    given = "".join(f"    {name}={value!r},\n" for name, value in settings.items())
    return (
        f"{encoder.image_import}\nfrom safetensors.torch import load_file\n{imports}\n"
        f"from selfsight.data.eval_transform import EvalTransform\n\n{build}\n"
        f'model.load_state_dict(load_file(f"{{folder}}/{WEIGHTS}"))  # strict\nmodel.eval()\n'
        f"transform = EvalTransform(\n{given})\n".replace("'", '"')
        + f"{encoder.image_line}\nfeatures = model(transform(image)[None])"
    )
