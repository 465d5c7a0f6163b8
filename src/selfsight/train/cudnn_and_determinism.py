"""Set torch's global switches: which convolutions cuDNN tries, and deterministic kernels."""

import os

import torch

from selfsight.recipe import Recipe
from selfsight.train.compile import is_compiled, persist_compile_cache

SMALL_VIEW = 64  # pixels; cuDNN tries every convolution for views up to this size


def configure_torch(recipe: Recipe, device: torch.device) -> None:
    """Set torch's global switches: choice of kernels, determinism, and the compile cache."""
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = not recipe.repeatable
        # For small views all kernels are tried, not ten: some are faster, and it takes seconds.
        torch.backends.cudnn.benchmark_limit = 0 if recipe.views[0].size <= SMALL_VIEW else 10
        torch.use_deterministic_algorithms(recipe.repeatable)
    if is_compiled(recipe, device):
        persist_compile_cache()
