"""Compile backbones and heads, each once, for any number of views that a step encodes.

A step compiled as one graph would contain the backbone once for each view and once more for the
teacher, and would take minutes to compile. Losses compile themselves on CUDA
(`losses/float32_losses.py`).
"""

import atexit
import contextlib
import os
import shutil
import tempfile
import warnings
from pathlib import Path

import torch
import torch._functorch.config as functorch_config
from torch import nn

from selfsight import dist
from selfsight.compile_options import COMPILE_OPTIONS, allow_many_versions
from selfsight.data.cache_files import cache_folder, is_private
from selfsight.methods import Method
from selfsight.nn import encoders
from selfsight.nn.activation_checkpointing import RecomputedBlocks, find_blocks
from selfsight.recipe import Recipe
from selfsight.terminal.console import open_console


def is_compiled(recipe: Recipe, device: torch.device) -> bool:
    """Return whether to compile networks and losses: on a CPU it takes longer than it saves."""
    return recipe.compile and device.type == "cuda"


def compile_stance(recipe: Recipe, device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Return a context in which losses run uncompiled if the recipe does not compile."""
    if device.type == "cuda" and not recipe.compile:
        return torch.compiler.set_stance("force_eager")
    return contextlib.nullcontext()


def persist_compile_cache() -> None:
    """Persist Inductor's cache, so that a later process finds the compiled code.

    Code from the cache is run, so a folder that others can write to is not used.
    """
    # Losses and crops need full float32; the networks run in bf16 anyway.
    warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
    given = os.environ.get("TORCHINDUCTOR_CACHE_DIR", "")
    # Torch itself may have set the variable, to a folder that anyone may have created.
    default = str(Path(tempfile.gettempdir()) / "torchinductor_")
    if not given or given.startswith(default):
        folder = cache_folder() / "compiled"
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.chmod(0o700)  # only its owner can do this
        if not (is_private(folder) and os.access(folder, os.W_OK)):
            open_console(stderr=True, quiet=dist.rank() != 0).print(
                f"{folder} is not a folder that only you can write to, so the next run has to "
                "compile again. Set XDG_CACHE_HOME to a folder of your own.",
                soft_wrap=True,
            )
            folder = Path(tempfile.mkdtemp(prefix="selfsight-compiled-"))
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    # Batch norm over groups has a custom gradient, which the cache would otherwise reject.
    functorch_config.autograd_cache_allow_custom_autograd_functions = True


def compile_networks(method: Method, *, blocks: bool = False) -> None:
    """Compile a method's networks in place; state-dict keys do not change.

    A backbone is compiled apart from its heads, so that all methods use the same compiled code.
    With `blocks`, or if blocks are recomputed, each block of a backbone is compiled separately.
    Modules that differ only in their weights, such as blocks of one shape or the networks of an
    earlier run in this process, are compiled once: parameters are inputs of the compiled code.
    """
    allow_many_versions()
    for encoder in encoders(method):
        encoder.projector.compile(**COMPILE_OPTIONS)
        if blocks or any(isinstance(m, RecomputedBlocks) for m in encoder.backbone.modules()):
            for block in find_blocks(encoder.backbone):
                block.compile(**COMPILE_OPTIONS)
        else:
            encoder.backbone.compile(**COMPILE_OPTIONS)
    if isinstance(head := getattr(method, "predictor", None), nn.Module):
        head.compile(**COMPILE_OPTIONS)
