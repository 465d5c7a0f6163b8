"""Compile backbones and heads, each once, for any number of views that a step encodes.

A step compiled as one graph would contain the backbone once for each view and once more for the
teacher, and would take minutes to compile. Losses compile themselves on CUDA
(`losses/float32_losses.py`).
"""

import contextlib

import torch
from torch import nn

from selfsight.compile_options import COMPILE_OPTIONS, allow_many_versions
from selfsight.methods import Method
from selfsight.nn import encoders
from selfsight.nn.activation_checkpointing import RecomputedBlocks, find_blocks
from selfsight.recipe import Recipe


def is_compiled(recipe: Recipe, device: torch.device) -> bool:
    """Return whether to compile networks and losses: on a CPU it takes longer than it saves."""
    return recipe.compile and device.type == "cuda"


def compile_stance(recipe: Recipe, device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Return a context in which losses run uncompiled if the recipe does not compile."""
    if device.type == "cuda" and not recipe.compile:
        return torch.compiler.set_stance("force_eager")
    return contextlib.nullcontext()


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
