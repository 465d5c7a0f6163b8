"""Write a backbone as a weight file of detectron2, for its configs and those of MoCo."""

import io
import os
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from selfsight.backbones.resnet import ResNet
from selfsight.errors import UserError

RENAMED = (
    (r"^(conv1|bn1)\.", r"stem.\1."),
    (r"^layer(\d)\.", lambda match: f"res{int(match[1]) + 1}."),
    (r"\bbn(\d)\.", r"conv\1.norm."),
    (r"\bdownsample\.0\.", "shortcut."),
    (r"\bdownsample\.1\.", "shortcut.norm."),
)


def detectron2_name(name: str) -> str:
    """The name in detectron2 of a ResNet's weight."""
    for pattern, new in RENAMED:
        name = re.sub(pattern, new, name)
    return name


def to_detectron2(backbone: nn.Module, path: str | Path) -> Path:
    """Write a backbone's weights for `MODEL.WEIGHTS`; return the path.

    The config must have RESNETS.STRIDE_IN_1X1 False, INPUT.FORMAT "RGB", and PIXEL_MEAN and
    PIXEL_STD of the pretraining times 255, as MoCo's configs do.
    """
    if not isinstance(backbone, ResNet):
        raise UserError(
            f"detectron2's file is for ResNets, but the backbone is a {type(backbone).__name__}. "
            "Use a backbone whose name begins with resnet."
        )
    if not isinstance(backbone.maxpool, nn.MaxPool2d) or backbone.conv1.in_channels != 3:
        raise UserError(
            "detectron2's ResNet has three channels and a stem of a 7 x 7 convolution and a "
            'pooling, and this backbone has not. Train one with backbone.stem "imagenet".'
        )
    weights = {
        detectron2_name(name): value.detach().float().cpu().contiguous().numpy()
        for name, value in backbone.state_dict().items()
        if not name.endswith("num_batches_tracked")
    }
    content = {"model": weights, "__author__": "selfsight", "matching_heuristics": True}
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=4).dump(content)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".part")
    temporary.write_bytes(buffer.getvalue())
    os.replace(temporary, path)
    return path


class _Pickler(pickle.Pickler):
    """Pickle arrays so that every numpy can read them: numpy 2 refers to modules numpy 1 lacks."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return np.ndarray, (value.shape, value.dtype.str, bytearray(value.tobytes()))
        return NotImplemented
