"""Evaluate an encoder by named protocols; print the table, write results, verdict and report."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from selfsight import dist
from selfsight.data.eval_transform import EvalTransform
from selfsight.encoders.load_encoder import (
    EncoderUnderTest,
    check_encodes,
    load_encoder,
    load_recipe,
    run_classes,
)
from selfsight.encoders.load_run_networks import find_checkpoint
from selfsight.encoders.untrained_network import UNTRAINED, build_untrained
from selfsight.errors import UserError
from selfsight.evals.detection import DetectionDataset, DetectionEvaluator
from selfsight.evals.eval_images import EvalImages, augmentation_size
from selfsight.evals.extract_features import Features
from selfsight.evals.multilabel_data import MultilabelData, to_squares
from selfsight.evals.protocols import Evaluator, build_evaluator, get_protocol
from selfsight.nn import Backbone
from selfsight.options.eval_options import EvalOptions
from selfsight.run_files.json_files import write_json
from selfsight.run_files.run_folder import Run
from selfsight.runs.analyze_features import analyze_features
from selfsight.runs.check_eval_options import DEFAULT_PROTOCOLS, check_options
from selfsight.runs.compare_runs import format_difference, format_measure, name_label_free
from selfsight.runs.describe_results import describe_results, tabulate_classes, tabulate_results
from selfsight.runs.image_sheets import write_map_and_neighbors
from selfsight.runs.labeled_sources import (
    LabeledSources,
    cut_labeled,
    find_labeled_kind,
    find_voc_folder,
    load_detection_split,
    load_several_labels,
    open_labeled,
)
from selfsight.runs.open_run_images import open_run_images
from selfsight.runs.result_fingerprint import identify_boxes, identify_images, identify_multilabel
from selfsight.runs.score_encoders import (
    FeatureCache,
    score_label_free,
    score_labeled,
    score_protocol,
)
from selfsight.runs.start_or_resume import write_verdict
from selfsight.terminal.console import build_table, open_console

TRAIN_SPLITS, TEST_SPLITS = ("trainval", "train"), ("test", "val")
Results = dict[str, dict[str, Any]]
BuildEvaluator = Callable[[EncoderUnderTest], Evaluator]
Boxes = tuple[DetectionDataset, DetectionDataset]  # to train on, and to test on


def evaluate(
    run: Run, encoder: str, device: torch.device, options: EvalOptions, *, quiet: bool
) -> Results:
    """Evaluate an encoder, named as a run folder or a backbone; write results to the folder `run`.

    Without labels and without protocols, only the measures that need no labels.
    """
    check_options(options)
    labeled = None if options.labeled is None else str(options.labeled)
    test = None if options.test is None else str(options.test)
    settings = {"command": "evaluate", "encoder": encoder} | vars(options)
    with dist.process_group(device.type, settings):
        encoders = _load_encoders(run, encoder, device, options)
        if labeled is None and not options.protocols:
            return _evaluate_label_free(run, encoders[0], device, options, quiet=quiet)
        about: dict[str, Any] = {"encoder": encoder, "data": labeled}
        about |= {} if test is None else {"test_data": test}
        recipe = encoders[0].recipe
        about |= {"started_from": recipe.start.name} if recipe and recipe.start.name else {}
        groups = _group_by_data(options.protocols or DEFAULT_PROTOCOLS, labeled)
        results: Results = {}
        sources = data_set = None
        if groups["labeled"]:
            sources = open_labeled(options, run_classes(encoder, trust=options.trust))
            others = {e.name: e.recipe for e in encoders[1:] if e.name in options.against}
            sources = cut_labeled(sources, encoders[0].recipe, others)
            if sources.note and dist.rank() == 0:
                open_console(stderr=True).print(sources.note)
            about |= {"classes": list(sources.classes)} if sources.classes else {}
            column = sources.train.label_column
            about |= {} if column is None else {"label_column": column}
            both = [source for source in (sources.train, sources.test) if source is not None]
            data_set = identify_images(run, str(labeled), both)
            if sources.train.multilabels is not None:
                groups |= {"multilabel": groups["labeled"], "labeled": []}
        about_frozen = about | {"features": "backbone", "seed": options.seed}
        data = None
        if groups["multilabel"]:
            data = load_several_labels(
                sources, groups["multilabel"], encoders[0].transform, device, options
            )
            data_set = data_set or identify_multilabel(run, str(labeled), data)
        for name in groups["multilabel"]:
            build: BuildEvaluator = partial(_build_svm, name, data, options)
            about_rows = about_frozen | {"features": options.feature_name}
            file = options.result_name(name)
            results[file] = score_protocol(
                run, file, encoders, build, about=about_rows, data=data_set
            )
        for name in groups["boxes"]:
            boxes = _load_boxes(str(labeled), test)
            build = partial(_build_detector, name, boxes, options)
            # The settings of detection name both data sets.
            about_boxes = {k: v for k, v in about_frozen.items() if k != "test_data"}
            data_set = identify_boxes(run, str(labeled), *boxes)
            results[name] = score_protocol(
                run, name, encoders, build, about=about_boxes, data=data_set
            )
        train_images = test_images = None
        cache: FeatureCache = {}
        if groups["labeled"]:
            assert sources is not None
            # Pixels to augment are decoded first if a protocol needs them, else the crops.
            augments = any(get_protocol(name).augments for name in groups["labeled"])
            transform = encoders[0].transform
            store_size = augmentation_size(transform) if augments else None
            train_images, test_images = _load_labeled(sources, transform, device, store_size)
            results |= score_labeled(
                run,
                encoders,
                train_images,
                test_images,
                options,
                names=groups["labeled"],
                about=about,
                data_set=data_set,
                cache=cache,
            )
        if groups["images"]:
            results |= analyze_features(run, encoders, labeled, device, options, about)
        if dist.rank() == 0:
            _report(
                run,
                encoders,
                train_images,
                results,
                _select_parts(cache, encoders[0].name, same_images=test_images is None),
                by_class=options.by_class,
                trust=options.trust,
                quiet=quiet,
            )
        dist.barrier()
        return results


def _load_encoders(
    run: Run, encoder: str, device: torch.device, options: EvalOptions
) -> list[EncoderUnderTest]:
    """Load the encoder, its untrained copy and those to compare with, as the options say."""
    load = partial(
        load_encoder,
        device=device,
        source=options.features,
        image_size=options.image_size,
        trust=options.trust,
        last_blocks=options.last_blocks,
        patch_mean=options.patch_mean,
        preprocess=options.preprocess,
        kind=find_labeled_kind(options, (encoder, *options.against)),
    )
    first = load(encoder, part=options.part, stem=options.stem)
    if options.image_size is not None:
        check_encodes(first)
    if first.weights and dist.rank() == 0:
        weights = {"file": encoder, "weights": list(first.weights)}
        write_json(run.path / "import.json", weights)
    if options.labeled is None and not options.protocols:
        return [first]
    untrained = [build_untrained(first, device, options.features)] if options.untrained else []
    return [first, *untrained, *(load(other) for other in options.against)]


def _group_by_data(protocols: Sequence[str], labeled: str | None) -> dict[str, list[str]]:
    """Group the protocols by the data they need; SVMs on VOC have several labels per image."""
    groups: dict[str, list[str]] = {"labeled": [], "boxes": [], "images": [], "multilabel": []}
    is_voc = labeled is not None and find_voc_folder(labeled) is not None
    for name in protocols:
        multilabel = name.startswith("svm") and is_voc
        groups["multilabel" if multilabel else get_protocol(name).data_kind].append(name)
    return groups


def _load_boxes(labeled: str, test: str | None) -> Boxes:
    """Load the boxes to train a detector on, and those to test it on."""
    if test is None and labeled.endswith((".parquet", ".json")):
        raise UserError(
            f"{labeled} has no splits, and a detector is tested on other images than it is "
            "trained on. Name the test images with --test."
        )
    return (
        load_detection_split(labeled, TRAIN_SPLITS),
        load_detection_split(test or labeled, TEST_SPLITS),
    )


def _build_detector(
    name: str, boxes: Boxes, options: EvalOptions, encoder: EncoderUnderTest
) -> Evaluator:
    """Build the detection evaluator of an encoder, whose statistics normalize the images."""
    evaluator = build_evaluator(name, boxes, options)
    assert isinstance(evaluator, DetectionEvaluator)
    if any(flag.startswith(("--set.mean", "--set.std")) for flag in options.settings):
        return evaluator
    return with_normalization_of(encoder.transform, evaluator)


def with_normalization_of(
    transform: EvalTransform, evaluator: DetectionEvaluator
) -> DetectionEvaluator:
    """Return the evaluator with the mean and std that the encoder expects."""
    values = (transform.mean, transform.std)
    mean, std = (v * transform.channels if len(v) == 1 else v for v in values)
    return replace(evaluator, detector=replace(evaluator.detector, mean=mean, std=std))


def _build_svm(
    name: str, data: MultilabelData | None, options: EvalOptions, encoder: EncoderUnderTest
) -> Evaluator:
    """Build the SVM of an encoder on squares of its size; those of a VOC folder have VISSL's."""
    assert data is not None
    is_voc = find_voc_folder(str(options.labeled)) is not None
    transform = to_squares(encoder.transform, data.transform.size if is_voc else None)
    return build_evaluator(name, replace(data, transform=transform), options)


def _evaluate_label_free(
    run: Run,
    encoder: EncoderUnderTest,
    device: torch.device,
    options: EvalOptions,
    *,
    quiet: bool,
) -> Results:
    recipe, where = encoder.recipe, find_checkpoint(encoder.name)
    if encoder.student is None or recipe is None or where is None:
        raise UserError("--backbone needs --labeled: labeled images to evaluate it with.")
    images = open_run_images(where.run, recipe, device, trust=options.trust)
    results: Results = {}
    if dist.rank() == 0:
        untrained = build_untrained(encoder, device).network
        results = score_label_free(run, recipe, encoder.student.backbone, untrained, images)
        table = [
            {
                "measure": name_label_free(name),
                **{n: format_measure(values, n, name) for n in ("trained", UNTRAINED)},
                "difference": format_difference(values["difference"], name),
            }
            for name, values in results.items()
        ]
        sentence = write_verdict(run, recipe).sentence if run.recipe_path.exists() else None
        count = next(iter(results.values()))["difference"]["n"]
        notes = [f"Of {count:,} images, two views each; brackets are 95 % intervals over them."]
        _print({"": table}, run, sentence, quiet=quiet, notes=notes)
    dist.barrier()
    return results


def _select_parts(
    cache: FeatureCache, name: str, *, same_images: bool
) -> dict[str, list[Features]]:
    """Select features for training and test; the test images may be a part of the same set."""
    parts = {}
    for network, encoder in (("trained", name), (UNTRAINED, UNTRAINED)):
        if encoder in cache:
            train, test = cache[encoder]
            parts[network] = [train, test] if same_images and test is not None else [train]
    return parts


def _report(
    run: Run,
    encoders: Sequence[EncoderUnderTest],
    train_images: EvalImages | None,
    results: Results,
    encoded: Mapping[str, Sequence[Features]],
    *,
    by_class: bool,
    trust: bool,
    quiet: bool,
) -> None:
    """Print the tables; if the first encoder is a run's, also write map, verdict and report."""
    tables = {"": tabulate_results(results)}
    if by_class:
        tables |= {name: tabulate_classes(result) for name, result in results.items()}
    sentence = None
    if run.recipe_path.exists():
        recipe = load_recipe(run, trust=trust)
        first, *others = encoders
        before = next((other.network for other in others if other.name == UNTRAINED), None)
        if train_images is not None and isinstance(first.network, Backbone):
            write_map_and_neighbors(
                run, train_images, first.network, before, first.transform, recipe.seed, encoded
            )
        sentence = write_verdict(run, recipe).sentence
    _print(tables, run, sentence, quiet=quiet, notes=describe_results(results))


def _print(
    tables: Mapping[str, list[dict[str, str]]],  # by title
    run: Run,
    sentence: str | None,
    *,
    quiet: bool,
    notes: Sequence[str] = (),
) -> None:
    if quiet:
        return
    console = open_console()
    for title, table in tables.items():
        if table:
            console.print(build_table(table, title=title or None))
    where = [sentence, f"Report: {run.report}"] if sentence else [f"Results: {run.results}"]
    console.print(*notes, *where, sep="\n")


def _load_labeled(
    sources: LabeledSources,
    transform: EvalTransform,
    device: torch.device,
    store_size: int | None,
) -> tuple[EvalImages, EvalImages | None]:
    """Load the labeled training images, and the test images if they are separate."""
    train = EvalImages(sources.train, transform, device, store_size=store_size)
    test = sources.test
    return train, None if test is None else EvalImages(test, transform, device)
