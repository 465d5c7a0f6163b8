"""A weight file for detectron2's ResNet, and the settings that a config of it needs."""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from selfsight.backbones.library_weight_names import DETECTRON2_RESNET, to_theirs
from selfsight.exporters.exported_encoder import ExportedEncoder
from selfsight.exporters.network_shape import NetworkShape, ResNetShape
from selfsight.run_files.json_files import replace_file, write_text

FILE = "model.pkl"
DEPTHS: dict[tuple[str, tuple[int, ...]], int] = {
    ("BasicBlock", (2, 2, 2, 2)): 18,
    ("BasicBlock", (3, 4, 6, 3)): 34,
    ("Bottleneck", (3, 4, 6, 3)): 50,
    ("Bottleneck", (3, 4, 23, 3)): 101,
    ("Bottleneck", (3, 8, 36, 3)): 152,
}


def find_gap(shape: NetworkShape) -> str | None:
    """Say why detectron2's ResNet cannot hold this network; None if it can."""
    if not isinstance(shape, ResNetShape):
        return f"its file is for ResNets, and this is {shape.name}"
    if shape.norm != "bn":
        return "its norm layers are not batch norm"
    if shape.stem != "imagenet":
        return f'its stem is "{shape.stem}", and detectron2 has only "imagenet"'
    if (shape.block, shape.depths) not in DEPTHS:
        return f"detectron2 has no ResNet with {shape.depths} blocks"
    if shape.block == "BasicBlock" and shape.width != 64:
        return f"its first stage is {shape.width} channels wide, and detectron2's has 64"
    return None


def write(encoder: ExportedEncoder, folder: Path) -> str:
    """Write the folder; return the lines that load it."""
    weights = {
        to_theirs(name, DETECTRON2_RESNET): value.numpy()
        for name, value in encoder.weights.items()
        if not name.endswith("num_batches_tracked")
    }
    content = {"model": weights, "__author__": "selfsight", "matching_heuristics": True}
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=4).dump(content)
    with replace_file(folder / FILE) as file:
        file.write(buffer.getvalue())
    write_text(folder / "config.yaml", _config(encoder))
    return (
        "import torch\nfrom detectron2.checkpoint import DetectionCheckpointer\n"
        "from detectron2.config import get_cfg\nfrom detectron2.modeling import build_backbone\n"
        f"{encoder.image_import}\nfrom torchvision.transforms import v2\n\n"
        "cfg = get_cfg()  # or merge the config of a detector first\n"
        'cfg.merge_from_file(f"{folder}/config.yaml")\n'
        f'cfg.MODEL.WEIGHTS = f"{{folder}}/{FILE}"  # all that training a detector needs\n'
        'cfg.MODEL.RESNETS.OUT_FEATURES = ["res5"]\n'
        "backbone = build_backbone(cfg).eval()\n"
        "DetectionCheckpointer(backbone).load(cfg.MODEL.WEIGHTS)\n"
        f"crop = v2.Compose([{encoder.crop_steps}])\n"
        "mean = torch.tensor(cfg.MODEL.PIXEL_MEAN)[:, None, None]\n"
        "std = torch.tensor(cfg.MODEL.PIXEL_STD)[:, None, None]\n"
        f"{encoder.image_line}\n"
        'features = backbone(((crop(image) - mean) / std)[None])["res5"].mean((2, 3))'
    )


def _config(encoder: ExportedEncoder) -> str:
    shape = encoder.shape
    assert isinstance(shape, ResNetShape)
    mean, std = ([round(255 * x, 6) for x in values] for values in encoder.statistics)
    first = shape.width * (1 if shape.block == "BasicBlock" else 4)
    mode = "RGB" if shape.channels == 3 else "L"
    return (
        "# Merge this after the config of a detector: cfg.merge_from_file(...)\n"
        f"MODEL:\n  PIXEL_MEAN: {mean}\n  PIXEL_STD: {std}\n"
        f"  RESNETS:\n    DEPTH: {DEPTHS[shape.block, shape.depths]}\n    STRIDE_IN_1X1: False\n"
        f"    STEM_OUT_CHANNELS: {shape.width}\n    RES2_OUT_CHANNELS: {first}\n"
        f"    WIDTH_PER_GROUP: {shape.width}\n"
        f'INPUT:\n  FORMAT: "{mode}"\n'
    )


class _Pickler(pickle.Pickler):
    """Pickle arrays so that every numpy can read them: numpy 2 refers to modules numpy 1 lacks."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return np.ndarray, (value.shape, value.dtype.str, bytearray(value.tobytes()))
        return NotImplemented
