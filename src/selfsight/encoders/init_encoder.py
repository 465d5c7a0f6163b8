"""Import the encoder that a run starts from, by the names that `evaluate --backbone` takes."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch

from selfsight.backbones import BACKBONES, BackboneConfig
from selfsight.backbones.foreign_checkpoints.import_report import ImportReport
from selfsight.backbones.foreign_checkpoints.read_checkpoint import read_encoder_settings
from selfsight.backbones.freeze_stages import freeze_stages
from selfsight.backbones.input_channels import fit_weights
from selfsight.backbones.resnet import ResNet, find_stem
from selfsight.encoders.load_run_networks import find_checkpoint
from selfsight.errors import UserError
from selfsight.nn import Backbone
from selfsight.nn.group_and_layer_norm import Norm
from selfsight.options.pretrain_options import PretrainOptions
from selfsight.recipe import Recipe, Start, has_photos
from selfsight.run_files.json_files import replace_file
from selfsight.run_files.run_folder import Run
from selfsight.train.init_weights import Weights, checksum
from selfsight.views import View

LR_FACTOR = 0.1  # of the backbone, whose weights are trained already; the heads are new
CARD = "README.md"
CARD_BYTES = 1 << 16  # of a model card; its header comes first


class StartEncoder(NamedTuple):
    """An encoder to start from: its weights, its network, and how its images are normalized."""

    name: str
    weights: Weights
    content: bytes  # of the file of the weights
    backbone: BackboneConfig
    norm: Norm
    image_size: int | None
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    license: str | None
    summary: str  # what was loaded, and the license

    @property
    def settings(self) -> Start:
        """The recipe setting that names this encoder."""
        return Start(
            name=self.name,
            license=self.license,
            checksum=checksum(self.content),
            lr_factor=LR_FACTOR,
        )


def import_start(options: PretrainOptions) -> StartEncoder | None:
    """Import the encoder of --init; None if it is not given."""
    if options.init is None:
        for name in ("part", "stem"):
            if getattr(options, name) is not None:
                raise UserError(f"--{name} needs --init. Give both, or omit it.")
        return None
    from selfsight.backbones.foreign_checkpoints.load_backbone import (
        load_backbone,  # imports timm: a second
    )

    name = str(options.init)
    backbone, about = load_backbone(name, part=options.part, stem=options.stem, trust=options.trust)
    config, norm = _describe_network(name, backbone, about)
    weights = {key: value.contiguous() for key, value in backbone.state_dict().items()}
    license_name, sentence = _find_license(name, about)
    return StartEncoder(
        name=name,
        weights=weights,
        content=safetensors.torch.save(weights),
        backbone=config,
        norm=norm,
        image_size=about.image_size,
        mean=about.mean,
        std=about.std,
        license=license_name,
        summary=f"{about.summary()} {sentence}",
    )


def with_start(recipe: Recipe, start: StartEncoder, *, automatic: bool) -> Recipe:
    """Let a recipe start from an encoder, with the encoder's normalization of images.

    An automatic recipe also gets its network; a named one keeps its own, which must be the same.
    """
    changes: dict[str, Any] = {"start": start.settings}
    if start.mean is not None and start.std is not None and has_photos(recipe):
        changes["views"] = with_statistics(recipe.views, start.mean, start.std)
    if automatic:
        size = recipe.views[0].size
        channels = recipe.data.channels  # of images that are not photographs, else the encoder's
        changes["backbone"] = replace(start.backbone, image_size=size, in_channels=channels)
        changes["method"] = replace(recipe.method, norm=start.norm)
    return replace(recipe, **changes)


def with_statistics(
    views: tuple[View, ...], mean: tuple[float, ...], std: tuple[float, ...]
) -> tuple[View, ...]:
    """The same views, normalized by this mean and std."""
    return tuple(replace(view, mean=mean, std=std) for view in views)


def check_fits(recipe: Recipe, start: StartEncoder) -> None:
    """Raise a UserError unless the recipe's network can hold the weights of its start."""
    expected, given = recipe.backbone.resolved(), start.backbone
    if not has_photos(recipe):
        given = replace(given, in_channels=expected.in_channels)
    facts = {
        "backbone.name": (given.name, expected.name),
        "backbone.stem": (given.stem, expected.stem),
        "backbone.in_channels": (given.in_channels, expected.in_channels),
        "method.norm": (start.norm, recipe.method.norm),
    }
    for name, (of_start, of_recipe) in facts.items():
        if of_start != of_recipe:
            raise UserError(
                f"--init {start.name} has the {name} {of_start} and the recipe {of_recipe}, but "
                "weights fit their own network only. Leave --recipe and settings of the network "
                f"out, or add --{name.replace('_', '-')} {of_start}."
            )
    with torch.device("meta"):
        backbone = expected.build()
    freeze_stages(backbone, recipe.start.freeze)  # a UserError if it has fewer
    network = backbone.state_dict()
    weights = start.weights if has_photos(recipe) else fit_weights(start.weights, network)
    shapes = {name: value.shape for name, value in network.items()}
    wrong = [name for name, value in weights.items() if shapes.get(name) != value.shape]
    if wrong or len(shapes) != len(weights):
        raise UserError(
            f"--init {start.name} has weights of other shapes than {expected.name} for views of "
            f"{recipe.views[0].size} px: {(wrong or ['another number of them'])[0]}. Use its own "
            f"size{'' if start.image_size is None else f', {start.image_size}'}."
        )


def _describe_network(
    name: str, backbone: Backbone, about: ImportReport
) -> tuple[BackboneConfig, Norm]:
    """The settings that build this network, and its norm; raise a UserError if none do."""
    where = find_checkpoint(name)
    if where is not None:
        settings = read_encoder_settings(where.run)
        return settings.backbone.resolved(), settings.norm
    shape: dict[str, Any] = {"in_channels": about.channels, "image_size": about.image_size or 224}
    if about.network in BACKBONES:
        if isinstance(backbone, ResNet):
            shape |= {"stem": find_stem(backbone), "in_channels": backbone.conv1.in_channels}
        return BackboneConfig(name=about.network, **shape), "bn"
    from selfsight.backbones.from_timm import TimmBackbone

    if isinstance(backbone, TimmBackbone):
        shape["image_size"] = backbone.image_size
        return BackboneConfig(name=f"timm:{backbone.name}", **shape), "bn"
    file = name.rpartition("=")[2]
    raise UserError(
        f"{name} holds {about.network}, which pretraining cannot build. If timm has this network, "
        f"name it: --init timm:NAME{'' if ':' in file else f'={file}'}"
    )


def _find_license(name: str, about: ImportReport) -> tuple[str | None, str]:
    """The license of the weights, if it is stated, and a sentence about it."""
    where = find_checkpoint(name)
    stated = about.license
    if where is not None:
        began: dict[str, Any] = where.run.saved_recipe().get("start") or {}
        if not began.get("name"):
            return None, "Its weights were trained from random ones; their license is its owner's."
        stated = began.get("license")
    elif stated is None:
        stated = _read_card(Path(name.rpartition("=")[2]).expanduser().with_name(CARD))
    if stated is None:
        return None, "License of the weights unknown: ask its authors."
    return str(stated), f"License of the weights: {stated}."


def _read_card(path: Path) -> str | None:
    """The license that the header of a model card states, as on Hugging Face."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            text = file.read(CARD_BYTES)
    except OSError:
        return None
    header = re.match(r"---\n(.*?)\n---", text, re.DOTALL)
    found = header and re.search(r"^license:\s*[\"']?([\w.+-]+)", header[1], re.MULTILINE)
    return found[1] if found else None


def write_start(run: Run, start: StartEncoder) -> None:
    """Write the weights to the run folder, from where resume and reproduce read them."""
    with replace_file(run.start_weights) as file:
        file.write(start.content)
