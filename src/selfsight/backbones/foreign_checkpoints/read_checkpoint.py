"""Read checkpoint files, without running code that a file may contain."""

import argparse
import pickle
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import torch

from selfsight.backbones import BackboneConfig
from selfsight.backbones.foreign_checkpoints.weight_names import flatten
from selfsight.check_settings import RESTORE, build_settings, check_fields
from selfsight.command_hint import write_command
from selfsight.errors import UserError
from selfsight.nn.group_and_layer_norm import Norm
from selfsight.run_files.json_files import read_object
from selfsight.run_files.run_folder import Run, open_run
from selfsight.views import View

BROKEN = (RuntimeError, EOFError, ValueError, OSError, zipfile.BadZipFile)


def read_checkpoint(path: Path, *, trust: bool = False) -> dict[str, Any]:
    """Read a file into a flat mapping from dotted names to values."""
    if not path.is_file():
        raise UserError(f"There is no file {path}. Give the path of a file of weights.")
    if path.suffix == ".safetensors":
        return _load_safetensors(path)
    if path.suffix in (".pkl", ".npz", ".npy", ".h5", ".msgpack"):
        raise UserError(
            f"{path} is not a PyTorch file. DeepMind's BYOL, for one, is published as a pickle of "
            "JAX arrays, which only its code can read. Convert it to a state dict with "
            "torchvision's names and save that as .safetensors or .pth."
        )
    return flatten(_load_pickle(path, trust=trust))


class EncoderSettings(NamedTuple):
    """What a run's recipe says about its encoder."""

    backbone: BackboneConfig
    norm: Norm
    view: View


def read_encoder_settings(run: Run) -> EncoderSettings:
    """Read the network of a run, and size and statistics of its first view, from its recipe."""
    saved, path = open_run(run).saved_recipe(), run.recipe_path
    parts = {"backbone": dict[str, Any], "method": dict[str, Any], "views": list[dict[str, Any]]}
    check_fields(saved, parts, path, required=tuple(parts))
    view = saved["views"][0] if saved["views"] else {}
    declared = {"size": int, "mean": list[float], "std": list[float]}
    check_fields(view, declared, path, required=tuple(declared), prefix="views.0.")
    check_fields(saved["method"], {"norm": Norm}, path, prefix="method.")
    try:
        return EncoderSettings(
            build_settings(BackboneConfig, saved["backbone"], "backbone."),
            saved["method"].get("norm", "bn"),
            *build_settings(tuple[View], [{name: view[name] for name in declared}], "views."),
        )
    except UserError as error:
        raise UserError(f"{path} is damaged: {error} {RESTORE}") from error


def read_preprocessing(weights: Path) -> dict[str, Any]:
    """Read image size, mean and std of an encoder of photographs that `selfsight export` wrote."""
    path = weights.with_name("preprocessing.json")
    saved = (read_object(path) if weights.is_file() else None) or {}
    declared = {"size": int, "mean": list[float], "std": list[float]}
    if not saved.keys() >= declared.keys() or "dtype" in saved:  # another's file; no photographs
        return {}
    check_fields(saved, declared, path)
    return {
        "image_size": saved["size"],
        "mean": tuple(saved["mean"]),
        "std": tuple(saved["std"]),
    }


def read_run_checkpoint(run: Run) -> dict[str, Any]:
    """Read the newest readable checkpoint of a run."""
    paths = [run.checkpoints / name for name in ("last.pt", "previous.pt")]
    paths = [path for path in paths if path.exists()]
    for path in paths:
        try:
            return read_checkpoint(path)
        except UserError:
            if path == paths[-1]:
                raise
    raise UserError(
        f"{run.path} has no checkpoint yet: the run has not finished its first epoch. "
        f"Continue with: {write_command('resume', run)}"
    )


def _load_safetensors(path: Path) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return dict(load_file(path))
    except (SafetensorError, *BROKEN) as error:
        raise UserError(_unreadable(path, error)) from error


def _load_pickle(path: Path, *, trust: bool) -> Any:
    try:
        # Many projects save their settings as a Namespace, which contains no code.
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if not trust:
            raise UserError(_needs_trust(path)) from error
    except BROKEN as error:
        raise UserError(_unreadable(path, error)) from error
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=False)
    except Exception as error:  # code in the file can raise anything
        raise UserError(
            f"{path} needs code that is not installed: {error}. Save only its state dict, where "
            "that code is installed."
        ) from error
    return loaded.state_dict() if isinstance(loaded, torch.nn.Module) else loaded


def _needs_trust(path: Path) -> str:
    try:
        names = sorted(set(torch.serialization.get_unsafe_globals_in_checkpoint(path)))
    except Exception:  # not supported for files older than torch 1.6
        names = []
    what = f" ({', '.join(names[:5])})" if names else ""
    return (
        f"{path} holds more than weights{what}: reading it would run code from the file. "
        "If you trust its author, add --trust (in Python: trust=True), or ask for a file with "
        "only weights, preferably .safetensors."
    )


def _unreadable(path: Path, error: Exception) -> str:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return f"{path} cannot be read as a file of weights: {reason}. Copy or download it again."
