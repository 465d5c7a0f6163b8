"""The file of a classifier: weights with checksum, classes, transform, and its training.

Weights are in safetensors, which runs no code. A head on frozen features is saved alone, with a
hash of its encoder; a fine-tuned network is saved with its head.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from selfsight.check_settings import RESTORE, build_settings, check_fields
from selfsight.data.eval_transform import EvalTransform
from selfsight.errors import UserError, list_first, suggest
from selfsight.run_files.json_files import (
    check_object,
    explain_write_errors,
    parse_json,
    replace_file,
)

ENDING = ".safetensors"
HEAD, BACKBONE = "head.", "backbone."  # begin the names of the weights
ENCODER = {  # how the encoder was loaded; `weights` is the hash of its own
    "name": str,
    "weights": str,
    "image_size": int | None,
    "preprocess": str,
    "part": str | None,
    "stem": str | None,
}
ABOUT = {
    "class_names": list[str],
    "transform": dict[str, Any],
    "encoder": dict[str, Any],
    "fine_tuned": bool,
    "images": int,
    "images_per_class": dict[str, int],
    "settings": dict[str, Any],
    "measured": dict[str, Any],
    "versions": dict[str, str],
}

MEASURED = {"n": int, "trained_on": int, "temperature": float, "calibrated": bool}
MEASURED_ON_IMAGES = {  # if n is not 0
    "accuracy": float,
    "guessed": float,
    "measured_on": str,
    "calibration_error": float,
    "calibration_error_before": float,
    "per_class": dict[str, dict[str, Any]],
}


class SavedClassifier(NamedTuple):
    """What a file holds."""

    path: Path
    head: nn.Linear
    backbone: dict[str, Tensor]  # empty if the encoder is used as it is
    transform: EvalTransform
    about: dict[str, Any]

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the head's outputs."""
        return tuple(self.about["class_names"])


def save_classifier(
    path: Path,
    head: nn.Linear,
    network: nn.Module | None,
    transform: EvalTransform,
    about: Mapping[str, Any],
) -> None:
    """Write the file completely or not at all; `network` is given if it was fine-tuned."""
    weights = {f"{HEAD}{name}": value for name, value in head.state_dict().items()}
    if network is not None:
        weights |= {f"{BACKBONE}{name}": value for name, value in network.state_dict().items()}
    weights = {name: value.detach().cpu().contiguous() for name, value in weights.items()}
    text = json.dumps({**about, "transform": asdict(transform)}, allow_nan=False)
    header = {"format": "pt", "about": text, "sha256": _checksum(weights, text)}
    with explain_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(path) as file:
            file.write(safetensors.torch.save(weights, header))


def read_classifier(path: Path) -> SavedClassifier:
    """Read a file; raise a UserError if it is damaged or not a classifier."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError) as error:
        raise UserError(f"{path} cannot be read: {error}. {RESTORE}") from error
    if not {"about", "sha256"} <= header.keys():
        raise UserError(f"{path} is not a classifier. Give a file that `selfsight classify` wrote.")
    if header["sha256"] != _checksum(weights, header["about"]):
        raise UserError(f"{path} is damaged: its checksum does not match. {RESTORE}")
    about = check_object(parse_json(header["about"], path), path)
    check_fields(about, ABOUT, path, required=tuple(ABOUT))
    check_fields(about["encoder"], ENCODER, path, required=tuple(ENCODER), prefix="encoder.")
    found = about["measured"]
    declared = MEASURED | (MEASURED_ON_IMAGES if found.get("n") else {})
    check_fields(found, declared, path, required=tuple(declared), prefix="measured.")
    head = {n.removeprefix(HEAD): w for n, w in weights.items() if n.startswith(HEAD)}
    shapes = {name: tuple(value.shape) for name, value in head.items()}
    classes, width = len(about["class_names"]), (*shapes.get("weight", ()), 0, 0)[1]
    if shapes != {"weight": (classes, width), "bias": (classes,)}:
        raise UserError(f"{path} is damaged: its head does not fit its classes. {RESTORE}")
    linear = nn.Linear(width, classes)
    linear.load_state_dict(head)
    return SavedClassifier(
        path,
        linear.requires_grad_(False),
        {n.removeprefix(BACKBONE): w for n, w in weights.items() if n.startswith(BACKBONE)},
        build_settings(EvalTransform, about["transform"], "transform."),
        about,
    )


def name_file(folder: Path, name: str) -> Path:
    """The file of a classifier: `name` itself if it is a path, else the one of this name."""
    path = Path(name)
    if not path.name:
        raise UserError(f'--classifier is "{name}". Give a name, or a file that ends in {ENDING}.')
    if path.suffix == ENDING:
        return path
    path = path.with_name(f"{path.name}{ENDING}")
    return path if len(path.parts) > 1 else folder / path


def find_classifier(folder: Path, name: str | Path | None) -> Path:
    """Find the file of a name, or the only one of a folder; raise a UserError if there is none."""
    known = sorted(path.stem for path in folder.glob(f"*{ENDING}"))
    if name is not None:
        path = name_file(folder, str(name))
        if path.is_file():
            return path
        have = f"{folder} has {list_first(known)}" if known else f"{folder} has none"
        raise UserError(f"There is no classifier {path}.{suggest(str(name), known)} {have}.")
    if len(known) == 1:
        return folder / f"{known[0]}{ENDING}"
    if not known:
        raise UserError(
            f"{folder} has no classifier. Train one first: add --labeled FOLDER, with a sub-folder "
            "for each class."
        )
    raise UserError(
        f"{folder} has several classifiers. Name one: --classifier {known[0]}, of "
        f"{list_first(known)}."
    )


def _checksum(weights: Mapping[str, Tensor], text: str) -> str:
    total = hashlib.sha256(text.encode())
    for name, value in sorted(weights.items()):
        total.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        total.update(value.contiguous().view(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()
