"""Weights alone, in the names of torchvision's ResNet or timm's ViT, loaded with selfsight."""

from pathlib import Path

from selfsight.exporters.exported_encoder import WEIGHTS, ExportedEncoder, save_weights
from selfsight.exporters.network_shape import NetworkShape, OtherNet


def find_gap(shape: NetworkShape) -> str | None:
    """None: any weights are written."""
    return None


def write(encoder: ExportedEncoder, folder: Path) -> str:
    """Write the folder; return the lines that load it."""
    save_weights(encoder.weights | encoder.head_weights("head"), folder)
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
    first, network = "", "model"
    load = f'model.load_state_dict(load_file(f"{{folder}}/{WEIGHTS}"))'
    if encoder.head is not None:
        first, network = f"{encoder.class_import}import torch\n", "head(model"
        load = (
            f'weights = load_file(f"{{folder}}/{WEIGHTS}")\n'
            f"head = torch.nn.Linear({encoder.head.linear.in_features}, {encoder.num_classes})\n"
            'head.load_state_dict({n: weights.pop(f"head.{n}") for n in ("weight", "bias")})\n'
            "model.load_state_dict(weights)"
        )
    result = f"{network}(transform(image)[None])" + ")" * (encoder.head is not None)
    return (
        f"{first}{encoder.image_import}\nfrom safetensors.torch import load_file\n{imports}\n"
        f"from selfsight.data.eval_transform import EvalTransform\n\n{build}\n"
        f"{load}  # strict\nmodel.eval()\n"
        f"transform = EvalTransform(\n{given})\n".replace("'", '"')
        + f"{encoder.image_line}\n{encoder.output_lines(result)}"
    )
