"""Score encoders by protocols and write results/*.json."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from torch import nn

from selfsight import dist
from selfsight.data import ImageStore
from selfsight.encoders.load_encoder import EncoderUnderTest
from selfsight.encoders.untrained_network import UNTRAINED
from selfsight.evals.baselines import baselines
from selfsight.evals.detection import DetectionEvaluator
from selfsight.evals.encoder_differences import paired_differences
from selfsight.evals.eval_images import Images, describe_transform
from selfsight.evals.extract_features import Features
from selfsight.evals.knn import KNN
from selfsight.evals.label_free import MEASURES, LabelFreeEvaluator
from selfsight.evals.labeled_data import LabeledData
from selfsight.evals.linear_lbfgs import LinearProbe
from selfsight.evals.linear_sgd import LinearSGDProbe
from selfsight.evals.multilabel_data import MultilabelData
from selfsight.evals.prediction_scores import Scores
from selfsight.evals.protocols import Evaluator, build_evaluator
from selfsight.evals.retrieval import Retrieval
from selfsight.evals.stratified_splits import load_or_create_split
from selfsight.evals.train_test_overlap import describe_copied_files, describe_copies
from selfsight.options.eval_options import EVAL_DEFAULTS, EvalOptions
from selfsight.recipe import Recipe
from selfsight.run_files.json_files import to_json
from selfsight.run_files.run_folder import Run
from selfsight.run_files.run_results import DataSet
from selfsight.runs.build_result import collect_arrays, collect_scores, read_per_image
from selfsight.runs.result_fingerprint import fingerprint_boxes, fingerprint_test_images
from selfsight.terminal.console import open_console

Built = TypeVar("Built")
FeatureCache = dict[str, tuple[Features, Features | None]]  # by the name of the encoder
CACHED = KNN | LinearProbe | LinearSGDProbe | Retrieval  # score features of the evaluation view
SENTENCES = {"note", "notes"}  # settings that follow from the others
BASELINE_FEATURES = "pixels, colors and the untrained backbone"


def score_labeled(
    run: Run,
    encoders: Sequence[EncoderUnderTest],
    train: Images,
    test: Images | None,
    options: EvalOptions = EVAL_DEFAULTS,
    *,
    names: Sequence[str] = ("knn", "linear"),
    about: Mapping[str, Any] | None = None,
    data_set: DataSet | None = None,
    cache: FeatureCache | None = None,
) -> dict[str, dict[str, Any]]:
    """Score the named protocols on labeled images, and with kNN also the baselines.

    `about` is added to the settings of every result, and `data_set` names their folder.
    `cache` receives the features that several protocols share.
    """
    about = {**(about or {}), "features": options.feature_name, "seed": options.seed}
    options = replace(options, split_folder=options.split_folder or run.path / "splits")
    split = None
    if test is None:
        split = _main_process_first(
            partial(load_or_create_split, run.path / "splits", train, seed=options.seed)
        )
    data = {
        encoder.name: LabeledData(
            train=train,
            test=test,
            split=split,
            transform=encoder.transform,
            progress=True,
            distributed=dist.world_size() > 1,
        )
        for encoder in encoders
    }

    def build(name: str, encoder: EncoderUnderTest) -> Evaluator:
        return _main_process_first(partial(build_evaluator, name, data[encoder.name], options))

    for name in names:  # a mistake in the last one is told before the first takes its time
        build(name, encoders[0]).settings()
    cache = {} if cache is None else cache
    results: dict[str, dict[str, Any]] = {}
    for name in names:
        file = options.result_name(name)
        results[file] = score_protocol(
            run, file, encoders, partial(build, name), about=about, data=data_set, cache=cache
        )
    if "knn" in names and len(encoders) > 1 and encoders[1].name == UNTRAINED:
        knn = KNN(data=data[UNTRAINED], ks=options.neighbor_counts, temperature=options.temperature)
        measured = knn.score(*cache[UNTRAINED]) if UNTRAINED in cache else None
        results["baselines"] = {
            **baselines(knn, encoders[1].network, measured),
            "settings": {
                **results[options.result_name("knn")]["settings"],
                "features": BASELINE_FEATURES,
            },
        }
        write_result(run, "baselines", results["baselines"], data_set)
    return results


def score_protocol(
    run: Run,
    name: str,
    encoders: Sequence[EncoderUnderTest],
    build: Callable[[EncoderUnderTest], Evaluator],
    *,
    about: Mapping[str, Any],
    data: DataSet | None = None,
    cache: FeatureCache | None = None,
) -> dict[str, Any]:
    """Score one protocol for the first encoder and for those to compare it with.

    The files are written after each encoder, so that finished numbers survive an interruption.
    NAME.npz has the outcome for each test image.
    """
    file = name_file(name, data)
    result: dict[str, Any] = {}
    scores: dict[str, Scores] = {}
    settings: dict[str, Any] = {}
    transforms: dict[str, Any] = {}  # of the encoders that the first is compared with
    for encoder in encoders:
        evaluator = build(encoder)
        if encoder is not encoders[0] and encoder.name != UNTRAINED:
            transforms[encoder.name] = _settings(evaluator).get("transform")
        settings = settings or {**_settings(evaluator), **about}
        key = "trained" if encoder is encoders[0] else encoder.name
        scores[key] = _score(evaluator, encoder, {} if cache is None else cache)
        if encoder is encoders[0] and all(other.name != UNTRAINED for other in encoders):
            scores |= previous_untrained(run, file, settings | describe_data_set(data))
        class_names = getattr(getattr(evaluator, "data", None), "class_names", ())
        result = collect_scores(scores, class_names)
        result |= {"against_transforms": transforms} if transforms else {}
        result["settings"] = settings | describe_data_set(data)
        write_result(run, name, result, data)
        arrays = collect_arrays(scores, settings.get("fingerprint", ""))
        if arrays and dist.rank() == 0:
            run.write_arrays(file, arrays)
    return result


def previous_untrained(run: Run, name: str, settings: Mapping[str, Any]) -> dict[str, Scores]:
    """Scores of the untrained network in an earlier result with the same settings, if any.

    They are kept by an evaluation that skips the untrained network.
    """
    previous = run.result(name) or {}
    prefix = f"{UNTRAINED}_"
    numbers = {k.removeprefix(prefix): v for k, v in previous.items() if k.startswith(prefix)}
    if not numbers:
        return {}
    before, now = previous.get("settings", {}), json.loads(json.dumps(to_json(settings)))
    keys = (before | now).keys() - SENTENCES
    if differ := sorted(key for key in keys if before.get(key) != now.get(key)):
        if dist.rank() == 0:
            open_console(stderr=True).print(
                f"{name.rpartition('/')[2]}: the earlier result had the untrained network too, but "
                f"other settings ({', '.join(differ)}), so its numbers are not kept. Leave out "
                "--no-untrained to evaluate it with these."
            )
        return {}
    arrays = run.arrays(name) or {}
    encoders = list(arrays.get("encoders", ()))
    if UNTRAINED not in encoders:  # the arrays were deleted, or are of a later evaluation
        return {}
    return {UNTRAINED: numbers | {"per_image": read_per_image(arrays, encoders.index(UNTRAINED))}}


def score_label_free(
    run: Run, recipe: Recipe, trained: nn.Module, untrained: nn.Module, images: ImageStore
) -> dict[str, Any]:
    """Score the measures that need no labels, trained and untrained."""
    evaluator = LabelFreeEvaluator(
        images=images, views=recipe.views, seed=recipe.seed, progress=True
    )
    both = {"trained": evaluator.score(trained), UNTRAINED: evaluator.score(untrained)}
    gains = paired_differences(both["trained"]["per_image"], both[UNTRAINED]["per_image"])
    scores: dict[str, Any] = {}
    for name in MEASURES:
        found = {
            f"{network}{end}": numbers[f"{name}{end}"]
            for network, numbers in both.items()
            for end in ("", "_low", "_high")
        }
        scores[name] = found | {"difference": gains[name]._asdict()}
    scores = to_json(scores)
    settings = evaluator.settings() | {"stored_size": recipe.data.store_size}
    run.write_result("label_free", {**scores, "settings": settings})
    return scores


def write_result(run: Run, name: str, result: dict[str, Any], data: DataSet | None = None) -> None:
    """Write a result in the first process, with null for numbers that are not finite."""
    if dist.rank() == 0:
        run.write_result(name_file(name, data), to_json(result))


def name_file(name: str, data: DataSet | None) -> str:
    """Name of a result in the run folder: `DATA/NAME`, or `NAME` for training images."""
    return name if data is None else f"{data.folder}/{name}"


def describe_data_set(data: DataSet | None) -> dict[str, Any]:
    """The setting that names the images of a result."""
    return {} if data is None else {"data_set": data._asdict()}


def _main_process_first(build: Callable[[], Built]) -> Built:
    """Call `build` in the first process, which may write files, and then in the others."""
    built = build() if dist.rank() == 0 else None
    dist.barrier()
    return build() if built is None else built


def _score(evaluator: Evaluator, encoder: EncoderUnderTest, cache: FeatureCache) -> Scores:
    """Run an evaluator; evaluators on the same images share their features."""
    if isinstance(evaluator, CACHED) and evaluator.data.subset is None:
        if encoder.name not in cache:
            large = evaluator.data.is_large
            cache[encoder.name] = evaluator.data.features(encoder.network, on_host=large)
        train, test = cache[encoder.name]
        if not isinstance(evaluator, KNN):  # which reads them from the host in blocks
            train = train._replace(h=train.h.to(train.index.device))
        return evaluator.score(train, test)
    return evaluator(encoder.network)


def _settings(evaluator: Evaluator) -> dict[str, Any]:
    """Collect the settings of the protocol, the sizes of its data and its notes."""
    settings = evaluator.settings()
    data = getattr(evaluator, "data", None)
    if isinstance(evaluator, DetectionEvaluator):
        copies = describe_copied_files(evaluator.train, evaluator.test)
        notes = [*settings["notes"], *([copies] if copies else [])]
        return settings | {"fingerprint": fingerprint_boxes(evaluator.test), "notes": notes}
    if not isinstance(data, LabeledData | MultilabelData):
        return settings
    copies = describe_copies(data)
    notes = [*settings.get("notes", ()), *data.notes, *([copies] if copies else [])]
    settings |= {
        "num_classes": len(data.class_names),
        "fingerprint": fingerprint_test_images(data),
        "notes": notes,
    }
    if isinstance(data, MultilabelData):
        return settings
    train, test = data.labels()
    return settings | {
        **({"labels": data.subset_name} if data.subset_name else {}),
        "train": len(train),
        "test": len(test),
        "split": "80/20, stratified, in splits/" if data.split else "as given",
        "view": f"{data.transform.size} px of {data.transform.resize}",
        "transform": settings.get("transform", describe_transform(data.train, data.transform)),
    }
