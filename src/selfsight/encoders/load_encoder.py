"""Load the networks that are evaluated: a run's encoder, an untrained copy, or any other."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from selfsight import dist
from selfsight.backbones.foreign_checkpoints.import_report import ImportReport
from selfsight.backbones.input_channels import fit_network
from selfsight.backbones.last_blocks import LastBlocks
from selfsight.check_settings import check_setting
from selfsight.data.eval_transform import MEAN, STD, EvalTransform, standard_transform, with_size
from selfsight.data.pixel_statistics import PixelKind
from selfsight.data.sources.select_classes import class_words
from selfsight.encoders.load_run_networks import find_checkpoint, load_method
from selfsight.errors import UserError
from selfsight.evals.extract_features import encode, eval_mode, module_device
from selfsight.methods import Method
from selfsight.nn import Encoder
from selfsight.options.eval_options import EncoderOptions
from selfsight.recipe import Recipe, eval_transform, from_dict
from selfsight.run_files.run_folder import Run
from selfsight.terminal.console import open_console

IMAGE_SIZE = 224  # of encoders that do not state their image size
FeatureSource = Literal["backbone", "projector"]
Preprocess = Literal["standard", "native"]  # this project's transform, or that of a library


class EncoderUnderTest(NamedTuple):
    """A network to evaluate, with the transform of its input images."""

    name: str  # in tables: a run folder, a backbone, or "untrained"
    network: nn.Module
    transform: EvalTransform
    method: Method | None = None  # if it comes from a run
    recipe: Recipe | None = None  # of that run
    weights: Sequence[Mapping[str, str]] = ()  # if it comes from a file: how each was used
    license: str | None = None  # of published weights, if it is stated

    @property
    def student(self) -> Encoder | None:
        """Backbone and projector, if it comes from a run."""
        return None if self.method is None else self.method.student


class ProjectorFeatures(nn.Module):
    """A student whose features are the outputs of its projector."""

    def __init__(self, student: Encoder) -> None:
        super().__init__()
        self.student = student

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n d"]:
        """Embed each image."""
        return self.student(x)[1]


def load_recipe(run: Run, *, trust: bool = False) -> Recipe:
    """Load the recipe of a run folder; with `trust` it may name code from outside selfsight."""
    saved = run.saved_recipe()
    try:
        return from_dict(saved, trust=trust, complete=True)
    except UserError as error:
        raise UserError(f"{run.recipe_path}: {error}") from error


def check_encodes(encoder: EncoderUnderTest) -> None:
    """Raise a UserError, before images are read, if the network does not take this image size."""
    transform = encoder.transform
    shape = (1, transform.channels, transform.size, transform.size)
    image = torch.zeros(shape, device=module_device(encoder.network))
    try:
        with eval_mode(encoder.network):
            encode(encoder.network, image)
    except UserError as error:
        raise UserError(
            f"--image-size {transform.size} does not fit {encoder.name}. {error} Leave "
            "--image-size out to use its own."
        ) from error


def run_classes(name: str, *, trust: bool = False) -> tuple[str, ...]:
    """The classes that a run was trained on, if this names a run and they were selected."""
    where = find_checkpoint(name)
    return () if where is None else class_words(load_recipe(where.run, trust=trust).data.classes)


def load_encoder(
    name: str,
    device: torch.device,
    source: str = "backbone",
    image_size: int | None = None,
    *,
    trust: bool = False,
    part: str | None = None,
    stem: str | None = None,
    last_blocks: int | None = None,
    patch_mean: bool = False,
    preprocess: str = "standard",
    kind: PixelKind | None = None,
) -> EncoderUnderTest:
    """Load the encoder of a run, of a library or of a file, with its input transform.

    An encoder that is not a run's is adapted to images of `kind`, if they are not photographs.
    `last_blocks` and `patch_mean` select features of a ViT's last blocks, see LastBlocks.
    """
    check_setting("features", source, FeatureSource)
    check_setting("preprocess", preprocess, Preprocess)

    def select(network: nn.Module) -> nn.Module:
        if last_blocks is None:
            return network
        return LastBlocks(network, last_blocks, patch_mean=patch_mean)

    where = find_checkpoint(name)
    if where is not None and stem is None and (part is None or where.file is None):
        recipe = load_recipe(where.run, trust=trust)
        method = load_method(where, recipe, device)
        transform = eval_transform(recipe, image_size)
        network = feature_network(method.student, source)
        license_name = recipe.start.license
        return EncoderUnderTest(
            name, select(network), transform, method, recipe, license=license_name
        )
    if source != "backbone":
        raise UserError(f"{name} has no projector: --features projector needs a run folder.")
    from selfsight.backbones.foreign_checkpoints.load_backbone import (
        load_backbone,  # imports timm: a second
    )

    backbone, about = load_backbone(
        name, image_size=image_size, device=device, trust=trust, part=part, stem=stem
    )
    console = open_console(stderr=True, quiet=dist.rank() != 0)
    console.print(about.summary())
    transform = _imported_transform(about, image_size, preprocess)
    if kind is not None:
        console.print(fit_network(backbone, kind.channels))
        statistics = {name: getattr(kind, name) for name in ("low", "high", "mean", "std")}
        transform = replace(transform, channels=kind.channels, dtype=kind.dtype, **statistics)
    return EncoderUnderTest(
        name, select(backbone), transform, weights=about.table(), license=about.license
    )


def load_with_options(
    name: str, device: torch.device, options: EncoderOptions, kind: PixelKind | None = None
) -> EncoderUnderTest:
    """Load the encoder of a run, of a library or of a file, as the options say."""
    encoder = load_encoder(
        name,
        device,
        image_size=options.image_size,
        trust=options.trust,
        part=options.part,
        stem=options.stem,
        preprocess=options.preprocess,
        kind=kind,
    )
    if options.image_size is not None:
        check_encodes(encoder)
    return encoder


def _imported_transform(
    about: ImportReport, image_size: int | None, preprocess: str
) -> EvalTransform:
    """The standard transform at the encoder's size and statistics, or its library's own."""
    if preprocess == "native":
        if about.native is None:
            raise UserError(
                f"--preprocess native uses what timm or torchvision says for a network, and "
                f"{about.spec} is of neither, or pads its images, or they are not square. Name its "
                "network, as in timm:NAME=FILE, or leave --preprocess out."
            )
        return about.native if image_size is None else with_size(about.native, image_size)
    size = image_size or about.image_size or IMAGE_SIZE
    return standard_transform(
        size, mean=about.mean or MEAN, std=about.std or STD, channels=about.channels
    )


def feature_network(student: Encoder, source: str) -> nn.Module:
    """The network whose output is the features: the backbone, or with the projector."""
    return student.backbone if source == "backbone" else ProjectorFeatures(student)
