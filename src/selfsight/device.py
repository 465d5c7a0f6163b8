"""The device that a command computes on, and what of a recipe it supports."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from selfsight import dist, rng
from selfsight.check_settings import check_setting
from selfsight.errors import UserError
from selfsight.recipe import Recipe
from selfsight.terminal.console import open_console

GPU_FILE = Path("/dev/nvidia0")  # there if a driver has a GPU, whether torch can use it or not
GPUS_VISIBLE = "CUDA_VISIBLE_DEVICES"
NO_GPU = ("", "-1", "NoDevFiles")  # values with which it hides all


def resolve_device(name: str) -> torch.device:
    """Resolve auto, cpu or cuda; a GPU that cannot be used is an error, not the CPU.

    auto leaves GPUs alone that CUDA_VISIBLE_DEVICES hides, and says so.
    """
    check_setting("device", name, str)
    if name not in ("auto", "cpu", "cuda"):
        which = f" {GPUS_VISIBLE}=N selects a GPU." if name.startswith("cuda") else ""
        raise UserError(f'--device is "{name}"; use auto, cpu or cuda.{which}')
    if name == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        hidden = os.environ.get(GPUS_VISIBLE, "all").strip() in NO_GPU
        if name == "auto" and (hidden or not GPU_FILE.exists()):
            quiet = not GPU_FILE.exists() or not dist.leads()
            console = open_console(stderr=True, quiet=quiet)
            console.print(f"The CPU is used: {GPUS_VISIBLE} hides the GPUs.", soft_wrap=True)
            return torch.device("cpu")
        built = torch.version.cuda or "no CUDA at all"
        why = "Is the driver recent enough (nvidia-smi shows it)?"
        if hidden:
            why = f'{GPUS_VISIBLE} is "{os.environ[GPUS_VISIBLE]}", which hides all of them.'
        raise UserError(
            f"There is no GPU that torch {torch.__version__} (built for CUDA {built}) can use. "
            f"{why} To use the CPU instead, add --device cpu."
        )
    device = torch.device("cuda", dist.local_rank())
    major, minor = torch.cuda.get_device_capability(device)
    if not any(
        arch.endswith(f"_{major}0") or arch.endswith(f"_{major}{minor}")
        for arch in torch.cuda.get_arch_list()
    ):
        raise UserError(
            f"{torch.cuda.get_device_name(device)} (compute capability {major}.{minor}) is too old "
            f"for torch {torch.__version__}. Install a torch built for it, or add --device cpu."
        )
    return device


def adapt_to_device(recipe: Recipe, device: torch.device) -> tuple[Recipe, dict[str, str]]:
    """Replace a precision or compilation that the device does not support, with the reasons."""
    reasons = {}
    precision: Literal["bf16", "fp16", "float32"] = recipe.precision
    if device.type == "cpu" and precision != "float32":
        precision, reasons["precision"] = "float32", "the CPU computes in float32"
    elif precision == "bf16" and not torch.cuda.is_bf16_supported(including_emulation=False):
        precision, reasons["precision"] = "fp16", "this GPU has no bf16; fp16 with loss scaling"
    compiled = recipe.compile
    if compiled and device.type == "cpu":
        compiled, reasons["compile"] = False, "nothing is compiled on the CPU"
    elif compiled and not rng.has_triton():
        compiled, reasons["compile"] = False, "no C compiler was found, so nothing is compiled"
    return replace(recipe, precision=precision, compile=compiled), reasons
