"""What is compiled: backbones and heads, each once, however many views a step shows them.

The whole step as one graph would hold the backbone once for each view and once more for the
teacher, and take minutes to compile; what lies between networks is launched by a CUDA graph anyway.
And it would be wrong where a queue is read and then written to: in its backward pass the compiler
(torch 2.11) reads the keys again, after the new ones have overwritten them.
"""

import os
import warnings
from pathlib import Path

from torch import nn

from sightline.data.cache import default_folder
from sightline.methods import Method
from sightline.nn import Encoder


def compile_networks(method: Method) -> None:
    """Compile a method's networks in place; the names of their weights stay as they are.

    Shapes are taken as they come: code for any batch size would be slower, and there is one.
    """
    # Losses and crops want all of float32; the networks are in bf16 anyway.
    warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
    # Where the cache of compiled code is kept, also after a restart of the machine.
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or str(default_folder() / "compiled")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    Path(folder).mkdir(parents=True, exist_ok=True)
    for encoder in (part for part in method.modules() if isinstance(part, Encoder)):
        encoder.backbone.compile(dynamic=False)
        encoder.projector.compile(dynamic=False)
    if isinstance(head := getattr(method, "predictor", None), nn.Module):
        head.compile(dynamic=False)
