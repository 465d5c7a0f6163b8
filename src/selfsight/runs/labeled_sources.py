"""Open the labeled images of an evaluation: the splits, and the classes that are used."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from selfsight import dist
from selfsight.data import Source, list_splits, open_source
from selfsight.data.eval_transform import EvalTransform
from selfsight.data.pixel_statistics import PixelKind, find_kind
from selfsight.data.sources.select_classes import (
    are_all,
    class_words,
    has_all_classes,
    select_classes,
)
from selfsight.encoders.load_run_networks import find_checkpoint
from selfsight.errors import UserError, list_first
from selfsight.evals.detection import DetectionDataset, load_detection_dataset
from selfsight.evals.multilabel_data import (
    SQUARES,
    MultilabelData,
    load_multilabel,
    load_voc07,
    to_squares,
)
from selfsight.evals.protocols import get_protocol
from selfsight.options.eval_options import EvalOptions
from selfsight.recipe import Recipe
from selfsight.runs.open_run_images import cut_like_run


class LabeledSources(NamedTuple):
    """Images to train on and to test on; without test images, training images are held out."""

    train: Source
    test: Source | None
    classes: tuple[str, ...]  # words of --classes, or of the run; none for all classes
    note: str = ""  # a sentence, if the run decided on the classes


def open_labeled(options: EvalOptions, run_classes: tuple[str, ...]) -> LabeledSources:
    """Open the labeled images with the classes of the options.

    Without --classes, use the classes of the run if the images have all of them.
    """
    labeled = str(options.labeled)
    classes = class_words(options.classes)
    train = _open_split(labeled, "train", classes, options.label_column)
    note = ""
    if not classes and not are_all(run_classes):
        given = list_first(run_classes)
        if has_all_classes(train, run_classes):
            classes, train = run_classes, select_classes(train, run_classes)
            note = f"Using the classes of the run: {given}. --classes all uses all classes."
        else:
            note = f"{labeled} lacks some classes of the run ({given}), so all classes are used."
    if options.test is None and "test" not in list_splits(labeled):
        return LabeledSources(train, None, classes, note)
    test = _open_test(str(options.test or labeled), train, options.label_column)
    return LabeledSources(train, select_classes(test, classes, complete=False), classes, note)


def _open_test(path: str, train: Source, label_column: str | None) -> Source:
    """Open the test images with the label column of the training images, if both have columns."""
    test = _open_split(path, "test", (), label_column)
    if None in (train.label_column, test.label_column) or train.label_column == test.label_column:
        return test
    try:
        return _open_split(path, "test", (), train.label_column)
    except UserError as error:
        raise UserError(
            f'The labels of {train.name} are its column "{train.label_column}", and those of '
            f'{path} its column "{test.label_column}", which may have other classes. Name a column '
            "of both with --label-column, or rename one."
        ) from error


def _open_split(
    path: str, split: str, classes: tuple[str, ...], label_column: str | None
) -> Source:
    named = split if split in list_splits(path) else None
    return open_source(path, labels=True, split=named, classes=classes, label_column=label_column)


def cut_labeled(
    sources: LabeledSources,
    recipe: Recipe | None,
    others: Mapping[str, Recipe | None] = MappingProxyType({}),
) -> LabeledSources:
    """Cut the images into tiles if the run used tiles; test images must come from other files.

    `others` are the recipes of --against: all encoders are measured on the same images.
    """
    tile = None if recipe is None else recipe.data.tile
    for name, other in others.items():
        if other is not None and other.data.tile not in (None, tile):
            seen = "whole images" if tile is None else f"tiles of {tile} px"
            raise UserError(
                f"{name} was trained on tiles of {other.data.tile} px, but --against would measure "
                f"it on {seen}, those of the encoder before it. Evaluate it by itself, or name it "
                "first."
            )
    if recipe is None or tile is None:
        return sources
    if sources.test is None:
        raise UserError(
            f"The run was trained on tiles of {recipe.data.tile} px. Tiles of one file are "
            "similar, so test images must come from other files: name them with --test, or give a "
            "folder with train/ and test/."
        )
    train, test = (cut_like_run(source, recipe) for source in (sources.train, sources.test))
    return sources._replace(train=train, test=test)


def find_labeled_kind(options: EvalOptions, encoders: Sequence[str]) -> PixelKind | None:
    """The kind of the labeled images, for encoders that are not a run's; else None."""
    is_folder = options.labeled is not None and find_voc_folder(str(options.labeled)) is None
    if not is_folder or all(find_checkpoint(name) for name in encoders):
        return None
    detects = any(get_protocol(name).data_kind == "boxes" for name in options.protocols)
    return None if detects else find_kind(open_source(str(options.labeled)))


def load_several_labels(
    sources: LabeledSources | None,
    names: Sequence[str],
    transform: EvalTransform,
    device: torch.device,
    options: EvalOptions,
) -> MultilabelData:
    """Load images with several classes each: of the sources, or of VOC 2007 if there are none."""
    settings: dict[str, Any] = {"progress": True, "distributed": dist.world_size() > 1}
    if sources is None:
        if options.test is not None:
            raise UserError(
                f"{options.labeled} is a VOC folder, which has its own test images. Leave --test "
                "out."
            )
        settings["transform"] = to_squares(SQUARES, options.image_size)
        return load_voc07(str(find_voc_folder(str(options.labeled))), **settings)
    several = f"{options.labeled} has several classes per image in its column "
    several += f'"{sources.train.label_column}"'
    for name in names:
        if not name.startswith("svm"):
            raise UserError(
                f"{several}, and {name} needs one. Use --protocol svm, or name a column with one "
                "class per image: --label-column."
            )
    if sources.test is None:
        raise UserError(f"{several} and no splits. Name the test images with --test.")
    return load_multilabel(sources.train, sources.test, transform, device=device, **settings)


def find_voc_folder(path: str) -> str | None:
    """Find the folder of one year of VOC: the path itself, or VOC2007 of a VOCdevkit."""
    years = (Path(path), Path(path) / "VOC2007")
    return next((str(p) for p in years if (p / "ImageSets" / "Main").is_dir()), None)


def load_detection_split(path: str, splits: Sequence[str]) -> DetectionDataset:
    """Load the first of these splits that exists; from every year of a VOCdevkit that has it."""
    for split in splits:
        years = sorted(Path(path).glob(f"VOC*/ImageSets/Main/{split}.txt"))
        try:
            return load_detection_dataset([file.parents[2] for file in years] or path, split)
        except UserError as error:
            if "no split" not in str(error) or split == splits[-1]:
                raise
    raise AssertionError("no split was given")
