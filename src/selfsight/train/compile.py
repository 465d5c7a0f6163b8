"""What is compiled: encoders and heads, each once, however many views a step shows them.

The whole step as one graph would hold the backbone once for each view and once more for the
teacher, and take minutes to compile. And it would be wrong where a queue is read and then written
to: in its backward pass the compiler (torch 2.11) reads the keys again, after the new ones have
overwritten them. Losses are compiled by themselves (`compiled_losses`).
"""

import contextlib
import os
import warnings
from pathlib import Path

import torch
import torch._functorch.config as tracing
from torch import nn

from selfsight.compile_options import COMPILE_OPTIONS
from selfsight.data.pixel_cache import cache_folder
from selfsight.methods import Method
from selfsight.nn import encoders


def keep_code() -> None:
    """Let what is compiled from now on be found again, also after a restart of the machine."""
    # Losses and crops want all of float32; the networks are in bf16 anyway.
    warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or str(cache_folder() / "compiled")
    with contextlib.suppress(OSError):  # where nothing can be written, torch has a place of its own
        Path(folder).mkdir(parents=True, exist_ok=True)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    # Batch norm over groups brings its own gradient, which lies in the graph that the key is of.
    tracing.autograd_cache_allow_custom_autograd_functions = True


def compile_networks(method: Method, *, backbones: bool = True) -> None:
    """Compile a method's networks in place; the names of their weights stay as they are.

    Backbones that encode in chunks have compiled what a chunk runs by themselves.
    """
    # A function is compiled eight times and then no more: earlier runs of this process, with other
    # shapes, must not use that up. What they compiled is still on the disk.
    torch.compiler.reset()
    for encoder in encoders(method):
        whole = (encoder, encoder.backbone) if backbones else ()
        for part in (*whole, encoder.projector):  # whichever a method calls
            part.compile(**COMPILE_OPTIONS)
    if isinstance(head := getattr(method, "predictor", None), nn.Module):
        head.compile(**COMPILE_OPTIONS)
