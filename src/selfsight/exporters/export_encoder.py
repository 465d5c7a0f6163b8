"""Export an encoder: choose the target, write its folder completely or not at all."""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from selfsight.classifiers.classifier_file import read_classifier
from selfsight.classifiers.classify_images import load_encoder_of
from selfsight.classifiers.describe_classifier import describe_labels, describe_measures
from selfsight.data.eval_transform import EvalTransform
from selfsight.encoders.load_encoder import load_with_options
from selfsight.encoders.load_run_networks import find_checkpoint
from selfsight.errors import UserError
from selfsight.exporters import (
    to_detectron2,
    to_hf,
    to_onnx,
    to_safetensors,
    to_timm,
    to_torchvision,
)
from selfsight.exporters.exported_encoder import CLASSES, ExportedEncoder, ExportedHead
from selfsight.exporters.model_card import describe_origin, write_card
from selfsight.exporters.network_shape import NetworkShape, describe_network
from selfsight.options.encoder_options import ExportOptions
from selfsight.run_files.json_files import explain_write_errors, write_json, write_text

TARGETS: dict[str, ModuleType] = {
    "safetensors": to_safetensors,
    "torchvision": to_torchvision,
    "timm": to_timm,
    "hf": to_hf,
    "onnx": to_onnx,
    "detectron2": to_detectron2,
}
PREPROCESSING = "preprocessing.json"


def export_encoder(
    name: str, folder: Path, options: ExportOptions, classifier: Path | None = None
) -> dict[str, Any]:
    """Write the encoder `name`, a run folder or a backbone, to a folder; return a summary.

    `lines` of the result is the Python code that loads it and encodes an image. With the file of a
    classifier, its head is part of the network, and the code predicts the class of an image.
    """
    target = _check_options(options)
    device, head, measures = torch.device("cpu"), None, []
    saved = None if classifier is None else read_classifier(classifier)
    with _new_folder(folder, overwrite=options.overwrite) as new:
        if saved is None:
            loaded = load_with_options(name, device, options)
        else:
            loaded = load_encoder_of(saved, name, device, options)
            head = ExportedHead(saved.head, saved.class_names)
            measures = [describe_labels(saved.about), *describe_measures(saved.about)]
            write_json(new / CLASSES, list(saved.class_names))
        encoder = describe_encoder(loaded.network, loaded.transform)._replace(head=head)
        check_carries(target, encoder.shape)
        _check_images(target, encoder, options)
        write = TARGETS[target].write
        if target == "onnx":
            write = partial(write, with_transform=options.with_transform)
        lines = write(encoder, new)
        license_name = options.license or loaded.license
        where = find_checkpoint(name)
        facts = describe_origin(name, where)
        card = write_card(
            encoder,
            target=target,
            lines=with_folder(lines, "."),
            license_name=license_name,
            facts=[*facts, *measures],
        )
        write_text(new / "README.md", card)
        mean, std = encoder.statistics
        values = loaded.transform.settings() | {"mean": mean, "std": std}
        write_json(new / PREPROCESSING, values)
        files = sorted(path.name for path in new.iterdir())
    return {
        "folder": str(folder),
        "target": target,
        "network": encoder.shape.name,
        "files": files,
        "license": license_name,
        "trained": facts[0],
        "lines": with_folder(lines, str(folder)),
    }


def with_folder(lines: str, folder: str) -> str:
    """Name the folder after the imports, of which each that is used stands once, in order."""
    imports, _, rest = lines.partition("\n\n")
    words = set(re.findall(r"\w+", rest))
    used = {line for line in imports.splitlines() if words & set(re.findall(r"\w+(?=,|$)", line))}
    ordered = sorted(used, key=lambda line: (line.startswith("from"), line.lower()))
    return "\n".join([*ordered, "", f"folder = {json.dumps(folder)}", rest])


def describe_encoder(network: nn.Module, transform: EvalTransform) -> ExportedEncoder:
    """Collect what the targets write: shape, and weights on the CPU."""
    inner = getattr(network, "net", network)  # networks of timm and torchvision are wrapped
    weights = {key: value.detach().cpu().contiguous() for key, value in inner.state_dict().items()}
    shape = describe_network(network, transform.size)
    return ExportedEncoder(network, shape, weights, transform)


def check_carries(target: str, shape: NetworkShape) -> None:
    """Raise a UserError that names other targets, if this one has no such network."""
    gap = TARGETS[target].find_gap(shape)
    if gap is not None:
        others = [f"--to {name}" for name, to in TARGETS.items() if to.find_gap(shape) is None]
        raise UserError(
            f"--to {target} cannot hold this network: {gap}. Use {' or '.join(others)}."
        )


def _check_images(target: str, encoder: ExportedEncoder, options: ExportOptions) -> None:
    """Raise a UserError for images that are not photographs where only those are read."""
    if encoder.has_photos:
        return
    kind = f"{encoder.transform.dtype} with {encoder.transform.channels} channels"
    if target == "detectron2":
        raise UserError(
            "--to detectron2 reads 8-bit gray or color, and the images of this encoder are "
            f"{kind}. Use --to safetensors, torchvision, timm, hf or onnx."
        )
    if options.with_transform:
        raise UserError(
            f"--with-transform resizes 8-bit gray or color, and the images of this encoder are "
            f"{kind}. Leave it out: the lines that are printed transform them."
        )


def _check_options(options: ExportOptions) -> str:
    if options.to is None:
        raise UserError(f"Give --to, one of {', '.join(TARGETS)}.")
    if options.with_transform and options.to != "onnx":
        raise UserError(
            f"--with-transform is for --to onnx; a folder for {options.to} has the transform "
            "beside the weights. Leave it out."
        )
    if options.to == "onnx":
        to_onnx.check_installed()
    if options.to == "detectron2" and options.classifier is not None:
        raise UserError(
            "--to detectron2 writes a backbone for detection, which has no place for a classifier. "
            "Leave --classifier out, or use another --to."
        )
    return options.to


@contextlib.contextmanager
def _new_folder(folder: Path, *, overwrite: bool) -> Iterator[Path]:
    """A temporary folder, renamed when it is complete; an earlier export stays until then."""
    folder = folder.absolute()  # "." has no name
    holds_files = folder.is_dir() and any(folder.iterdir())
    if folder.is_file() or (holds_files and not (folder / PREPROCESSING).exists()):
        raise UserError(f"{folder} exists and is not an earlier export. Give another --out.")
    if holds_files and not overwrite:
        raise UserError(f"{folder} holds an export. Add --overwrite, or give another --out.")
    new = folder.with_name(f"{folder.name}.part")
    with explain_write_errors(folder):
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
    try:
        with explain_write_errors(folder):
            yield new
            if folder.is_dir():
                shutil.rmtree(folder)
            os.replace(new, folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)
