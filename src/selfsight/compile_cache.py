"""Persist compiled code between processes, for training and evaluation."""

import atexit
import contextlib
import os
import shutil
import tempfile
import warnings
from pathlib import Path

import torch._functorch.config as functorch_config

from selfsight import dist
from selfsight.data.cache_files import cache_folder, is_private
from selfsight.terminal.console import open_console


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
