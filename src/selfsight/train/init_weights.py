"""The initial weights of a run: random, from its seed, or those of --init from its folder."""

import hashlib
from collections.abc import Mapping

import safetensors.torch
import torch
from torch import Tensor

from selfsight.backbones.freeze_stages import freeze_stages
from selfsight.backbones.input_channels import fit_weights
from selfsight.errors import UserError
from selfsight.methods import DataInfo, Method
from selfsight.methods.base import NO_DATA_INFO
from selfsight.nn import encoders
from selfsight.nn.activation_checkpointing import recompute_blocks
from selfsight.nn.ema_teacher import set_chunk_size
from selfsight.recipe import Recipe, Start
from selfsight.run_files.run_folder import Run

Weights = Mapping[str, Tensor]


def checksum(content: bytes) -> str:
    """SHA-256 of the content of a file."""
    return hashlib.sha256(content).hexdigest()


def read_start(run: Run, start: Start) -> Weights | None:
    """Read the weights that a run started from; None if they were random."""
    if not start.name:
        return None
    path = run.start_weights
    restore = f"Restore it from a copy, or start another run with --init {start.name}."
    try:
        content = path.read_bytes()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UserError(
            f"{path} holds the weights that this run started from, and cannot be read ({reason}). "
            f"{restore}"
        ) from None
    if checksum(content) != start.checksum:
        raise UserError(f"{path} is not the file that this run started from. {restore}")
    return safetensors.torch.load(content)


def load_start(method: Method, recipe: Recipe, weights: Weights | None) -> None:
    """Load the weights into the backbones of student and teacher, and freeze the first stages.

    Without weights the backbones keep their own, as a checkpoint will replace them.
    """
    for encoder in encoders(method):
        if weights is not None:
            encoder.backbone.load_state_dict(fit_weights(weights, encoder.backbone.state_dict()))
        freeze_stages(encoder.backbone, recipe.start.freeze)


def build_method(
    recipe: Recipe,
    device: torch.device,
    data: DataInfo = NO_DATA_INFO,
    *,
    start: Weights | None = None,
) -> Method:
    """Build the recipe's method with the initial weights of its seed, in training mode.

    The backbone has the weights `start`, if they are given.
    """
    torch.manual_seed(recipe.seed)
    method = recipe.method.build(recipe.backbone.build(), data).to(device)
    if recipe.chunk is not None:
        set_chunk_size(method, recipe.chunk)
    if recipe.activation_checkpointing:
        recompute_blocks(method)
    # Convolutions run up to twice as fast in this layout, on the CPU too.
    method = method.to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    load_start(method, recipe, start)
    return method
