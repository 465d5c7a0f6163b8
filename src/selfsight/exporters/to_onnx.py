"""A graph for ONNX Runtime, with or without the transform of the images."""

import contextlib
import io
import json
import warnings
from pathlib import Path

import torch

from selfsight.errors import UserError
from selfsight.exporters.exported_encoder import ExportedEncoder
from selfsight.exporters.network_shape import NetworkShape
from selfsight.exporters.onnx_transform import GraphTransform

FILE = "model.onnx"
LARGEST_FILE = 1_900_000_000  # bytes of weights in the graph's own file, which can hold 2 GiB


def find_gap(shape: NetworkShape) -> str | None:
    """None: a graph can hold any network."""
    return None


def check_installed() -> None:
    """Raise a UserError unless the packages that torch needs to write a graph are installed."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"--to onnx needs the packages onnx and onnxscript ({error}). Install them: "
            "pip install 'selfsight[onnx]'"
        ) from error


def write(encoder: ExportedEncoder, folder: Path, *, with_transform: bool = False) -> str:
    """Write the folder; return the lines that load it."""
    check_installed()
    transform, batch = encoder.transform, torch.export.Dim("N")
    size, channels = transform.size, transform.channels
    network: torch.nn.Module = encoder.network
    if encoder.head is not None:
        network = torch.nn.Sequential(network, encoder.head.linear, torch.nn.Softmax(dim=1))
    example, dynamic = torch.zeros(2, channels, size, size), {0: batch}
    if with_transform:
        network = GraphTransform(network, transform)
        example = torch.zeros(2, size + 9, size + 5, channels, dtype=torch.uint8)
        sides = (torch.export.Dim(name, min=2, max=2**15) for name in ("H", "W"))
        dynamic |= dict(zip((1, 2), sides, strict=True))
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # torch warns about itself
        program = torch.onnx.export(
            network.eval(),
            (example,),
            input_names=["images"],
            output_names=["features" if encoder.head is None else "probabilities"],
            dynamic_shapes=(dynamic,),
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    size_bytes = sum(w.numel() * w.element_size() for w in encoder.weights.values())
    if encoder.head is not None:
        program.model.metadata_props["classes"] = json.dumps(encoder.head.class_names)
    program.save(folder / FILE, external_data=size_bytes > LARGEST_FILE)
    return _lines(encoder, with_transform=with_transform)


def _lines(encoder: ExportedEncoder, *, with_transform: bool) -> str:
    transform = encoder.transform
    session = f'session = onnxruntime.InferenceSession(f"{{folder}}/{FILE}")'
    if not encoder.has_photos:
        return (
            f"{encoder.class_import}import onnxruntime\n{encoder.image_import}\n\n{session}\n"
            f"{encoder.transform_lines('')}\n{encoder.image_line}\n"
            + _output_lines(encoder, "transform(image)[None].numpy()")
        )
    imports = (
        f"{encoder.class_import}import numpy as np\nimport onnxruntime\n{encoder.image_import}\n\n"
    )
    expand = "" if transform.channels > 1 else "[..., None]"
    if with_transform:
        return (
            f"{imports}{session}\n{encoder.image_line}\n"
            f"x = np.asarray(image){expand}[None]  # uint8 [N, H, W, {transform.channels}]\n"
            + _output_lines(encoder, "x")
        )
    size, mean, std = transform.size, *encoder.statistics
    resized = f"({transform.resize}, {transform.resize})"
    if transform.keep_aspect:
        resized = f"[int({transform.resize} * side / min(image.size)) for side in image.size]"
    how = "BICUBIC" if transform.interpolation == "bicubic" else "BILINEAR"
    return (
        f"{imports}{session}\n{encoder.image_line}\n"
        f"size = {resized}\nimage = image.resize(size, Image.Resampling.{how})\n"
        f"left, top = (round((side - {size}) / 2) for side in image.size)\n"
        f"image = image.crop((left, top, left + {size}, top + {size}))\n"
        f"x = (np.asarray(image, np.float32){expand} / 255 - {mean}) / {std}\n"
        "x = x.transpose(2, 0, 1)[None].astype(np.float32)"
        f"  # [N, {transform.channels}, {size}, {size}]\n" + _output_lines(encoder, "x")
    )


def _output_lines(encoder: ExportedEncoder, images: str) -> str:
    """The lines that run the graph; that of a classifier gives probabilities."""
    return encoder.output_lines(f'session.run(None, {{"images": {images}}})[0]', softmax="")
