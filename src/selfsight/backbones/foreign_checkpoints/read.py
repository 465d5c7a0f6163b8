"""Files of weights, read without running the code that a file may bring."""

import argparse
import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch

from selfsight.backbones.foreign_checkpoints.names import flat
from selfsight.errors import UserError
from selfsight.run_folder import Run

BROKEN = (RuntimeError, EOFError, ValueError, OSError, zipfile.BadZipFile)


def read(path: Path, *, trust: bool = False) -> dict[str, Any]:
    """Everything in a file, by the names on the way to it."""
    if not path.is_file():
        raise UserError(f"There is no file {path}. Give the path of a file of weights.")
    if path.suffix == ".safetensors":
        return _safetensors(path)
    if path.suffix in (".pkl", ".npz", ".npy", ".h5", ".msgpack"):
        raise UserError(
            f"{path} is not a PyTorch file. DeepMind's BYOL, for one, is published as a pickle of "
            "JAX arrays, which only its own code reads. Convert it to a state dict with "
            "torchvision's names and save that as .safetensors or .pth."
        )
    return flat(_pickled(path, trust=trust))


def checkpoint_of(run: Run) -> dict[str, Any]:
    """The newest checkpoint of a run that can be read."""
    found = [run.checkpoints / name for name in ("last.pt", "previous.pt")]
    found = [path for path in found if path.exists()]
    for path in found:
        try:
            return read(path)
        except UserError:
            if path == found[-1]:
                raise
    raise UserError(
        f"{run.path} has no checkpoint yet: the run has not finished its first epoch. "
        f"Go on with: selfsight resume {run.path}"
    )


def _safetensors(path: Path) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return dict(load_file(path))
    except (SafetensorError, *BROKEN) as error:
        raise UserError(_broken(path, error)) from error


def _pickled(path: Path, *, trust: bool) -> Any:
    try:
        # The settings that many projects save beside the weights; a bag of values without code.
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if not trust:
            raise UserError(_needs_trust(path)) from error
    except BROKEN as error:
        raise UserError(_broken(path, error)) from error
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=False)
    except Exception as error:  # whatever the file's own code raises
        raise UserError(
            f"{path} needs code that is not here: {error}. Save its state dict, without the "
            "network around it, where that code is."
        ) from error
    return loaded.state_dict() if isinstance(loaded, torch.nn.Module) else loaded


def _needs_trust(path: Path) -> str:
    try:
        names = sorted(set(torch.serialization.get_unsafe_globals_in_checkpoint(path)))
    except Exception:  # files older than torch 1.6 cannot be asked
        names = []
    what = f" ({', '.join(names[:5])})" if names else ""
    return (
        f"{path} holds more than weights{what}: reading it would run code that the file chooses. "
        "If you trust its writer, add --trust (in Python: trust=True), or ask for a file of "
        "weights alone, best as .safetensors."
    )


def _broken(path: Path, error: Exception) -> str:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return f"{path} cannot be read as a file of weights: {reason}. Copy or download it again."
