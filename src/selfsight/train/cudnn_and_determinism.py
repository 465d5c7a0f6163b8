"""Set torch's global switches: which convolutions cuDNN tries, and deterministic kernels."""

import os

import torch

from selfsight.compile_cache import persist_compile_cache
from selfsight.recipe import Recipe
from selfsight.train.compile import is_compiled


def configure_torch(recipe: Recipe, device: torch.device) -> None:
    """Set torch's global switches: choice of kernels, determinism, and the compile cache."""
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = not recipe.repeatable
        torch.use_deterministic_algorithms(recipe.repeatable)
    if is_compiled(recipe, device):
        persist_compile_cache()
