"""Measure an encoder by the names of protocols, and tell what was found."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from selfsight import dist
from selfsight.console import build_table
from selfsight.data import Images, open_source, splits_of
from selfsight.data import load as load_images
from selfsight.errors import UserError
from selfsight.evals.detection import DetectionDataset, DetectionEvaluator, load_detection_dataset
from selfsight.evals.feature_analysis import FeatureAnalysis
from selfsight.evals.multilabel import load_voc07
from selfsight.evals.protocols import Evaluator, named, protocol, requested_amount
from selfsight.nn import Backbone
from selfsight.options import EvalOptions
from selfsight.recipe import Data
from selfsight.run_folder import Run, write_json
from selfsight.runs import results, start_resume
from selfsight.runs.compare import headline, in_words
from selfsight.runs.encoders import UNTRAINED, Candidate, candidate, saved_recipe, untrained
from selfsight.views import EvalView, View, moco_v2

DEFAULT = ("knn", "linear")
TEST_SPLITS = ("test", "val")
CHOSEN = ("rate", "weight_decay")
SIZES = ("", "50", "75", "_s", "_m", "_l", "_spread")
BESIDE = {"top5", "ema_accuracy", "map_11_point"} | {
    f"{kind}_AP{size}" for kind in ("box", "mask") for size in SIZES
}
Found = dict[str, dict[str, Any]]
Make = Callable[[Candidate], Evaluator]


def evaluate(
    run: Run, encoder: str, device: torch.device, options: EvalOptions, *, quiet: bool
) -> Found:
    """Evaluate an encoder, named as a run folder or a backbone; write results to the folder `run`.

    Without labels and without protocols, only the measures that need no labels.
    """
    labeled = None if options.labeled is None else str(options.labeled)
    test = None if options.test is None else str(options.test)
    protocols, features = options.protocols or DEFAULT, options.features
    _check_options(options)
    dist.start(device.type)
    try:
        load = partial(
            candidate,
            device=device,
            source=features,
            image_size=options.image_size,
            trust=options.trust,
        )
        first = load(encoder, part=options.part)
        if first.weights and dist.rank() == 0:
            weights = {"file": encoder, "weights": list(first.weights)}
            write_json(run.path / "import.json", weights)
        if labeled is None and not options.protocols:
            return _without_labels(run, first, device, quiet=quiet)
        candidates = [first]
        candidates += [untrained(first, device, features)] if options.untrained else []
        candidates += [load(other) for other in options.against]
        said = {"encoder": encoder, "data": labeled} | ({} if test is None else {"test_data": test})
        about = said | {"features": "backbone", "seed": options.seed}
        found: Found = {}
        voc = None if labeled is None else voc_folder(labeled)
        by_kind: dict[str, list[str]] = {"labeled": [], "boxes": [], "images": [], "marks": []}
        for name in protocols:
            marked = name.startswith("svm") and voc is not None
            by_kind["marks" if marked else named(name).opens].append(name)
        for name in by_kind["marks"]:
            make = _with_marks(name, str(voc), test, options)
            found[name] = results.scored(run, name, candidates, make, about=about)
        for name in by_kind["boxes"]:
            channels = _data(run, candidates).channels
            make = _with_boxes(name, str(labeled), test, options, channels)
            own = {k: v for k, v in about.items() if k != "test_data"}  # its settings name both
            found[name] = results.scored(run, name, candidates, make, about=own)
        train = None
        if by_kind["labeled"]:
            train, tested = _labeled(_data(run, candidates), str(labeled), test, device)
            found |= results.with_labels(
                run, candidates, train, tested, options, names=by_kind["labeled"], said=said
            )
        if by_kind["images"]:
            found |= _analyzed(run, candidates, labeled, device, options, said)
        if dist.rank() == 0:
            _conclude(run, first, train, found, quiet=quiet)
        dist.barrier()
        return found
    finally:
        dist.stop()


def _check_options(options: EvalOptions) -> None:
    """Report options that do not fit together, before any weights are read."""
    if options.test is not None and options.labeled is None:
        raise UserError("--test needs --labeled: the labeled images to train on.")
    protocols = {name: named(name) for name in options.protocols or DEFAULT}
    if options.protocols and options.labeled is None:
        for name, spec in protocols.items():
            if spec.opens != "images":
                raise UserError(f"{name} needs --labeled: the labeled images to train on.")
    few = any(name.startswith("few_labels.") for name in protocols)
    boxes = any(spec.opens == "boxes" for spec in protocols.values())
    trained = any(spec.epochs for spec in protocols.values())
    unused = {
        "--share, --per-class or --split-file": requested_amount(options) is not None and not few,
        "--iterations": options.iterations is not None and not boxes,
        "--epochs": options.epochs is not None and not trained,
    }
    if options.settings:
        unused[options.settings[0]] = not any(spec.flags for spec in protocols.values())
    for flag in (flag for flag, is_unused in unused.items() if is_unused):
        raise UserError(
            f"{flag} is a setting of protocols that train or have few labels, and none of "
            f"{', '.join(protocols)} has it. Leave it out, or name another --protocol; "
            "`selfsight evaluate --protocols` lists them."
        )


def _with_boxes(
    name: str, labeled: str, test: str | None, options: EvalOptions, channels: int
) -> Make:
    """Detection: the split called train to learn from, and test or val to be scored on."""
    if test is None and labeled.endswith((".parquet", ".json")):
        raise UserError(
            f"{labeled} has no splits, and a detector is scored on other images than it learns "
            "from. Give those with --test."
        )
    data = (objects(labeled, ("trainval", "train")), objects(test or labeled, TEST_SPLITS))

    def make(candidate: Candidate) -> Evaluator:
        made = protocol(name, data, options)
        assert isinstance(made, DetectionEvaluator)
        if any(flag.startswith(("--set.mean", "--set.std")) for flag in options.settings):
            return made
        return seen_as(made, candidate.spec, channels)

    return make


def seen_as(detection: DetectionEvaluator, spec: EvalView, channels: int) -> DetectionEvaluator:
    """The same detection with images normalized as the network expects them."""
    mean, std = (v * channels if len(v) == 1 else v for v in (spec.mean, spec.std))
    return replace(detection, setting=replace(detection.setting, mean=mean, std=std))


def _with_marks(name: str, labeled: str, test: str | None, options: EvalOptions) -> Make:
    """An SVM on images with several classes each: a folder of VOC 2007."""
    if test is not None:
        raise UserError(
            f"{labeled} is a folder of VOC, which brings its own test images. Leave --test out."
        )
    data = load_voc07(labeled, progress=True, shared=dist.world_size() > 1)

    def make(candidate: Candidate) -> Evaluator:
        spec = candidate.spec
        return protocol(name, replace(data, mean=spec.mean, std=spec.std), options)

    return make


def _analyzed(
    run: Run,
    candidates: Sequence[Candidate],
    labeled: str | None,
    device: torch.device,
    options: EvalOptions,
    said: Mapping[str, Any],
) -> Found:
    """What the features look like: of a run's own images, or of those that were given."""
    first = candidates[0]
    views: Sequence[View] = moco_v2(first.spec.size)
    if first.student is not None:
        recipe = saved_recipe(run)
        views = recipe.views
    if labeled is not None:
        data = _data(run, candidates)
        images = load_images(
            open_source(labeled), store_size=data.store_size, channels=data.channels
        ).to(device)
    elif first.student is not None:
        images = start_resume.images_of(recipe, device)
    else:
        raise UserError("--backbone needs --labeled: the images to look at.")
    evaluator = protocol("analysis", (images, views), options)
    assert isinstance(evaluator, FeatureAnalysis)
    found: dict[str, Any] = evaluator.write(run, first.student or first.network)
    for other in candidates[1:]:
        numbers = evaluator(other.student or other.network)
        if other.word == UNTRAINED:
            found |= {f"{UNTRAINED}_{name}": value for name, value in numbers.items()}
        else:
            found.setdefault("beside", {})[other.word] = numbers
    found["settings"] = {**evaluator.settings(), **said}
    results.write(run, "analysis", found)
    return {"analysis": found}


def _without_labels(run: Run, first: Candidate, device: torch.device, *, quiet: bool) -> Found:
    if first.student is None:
        raise UserError("--backbone needs --labeled: labeled images to measure it with.")
    recipe = saved_recipe(run)
    images = start_resume.images_of(recipe, device)
    found: Found = {}
    if dist.rank() == 0:
        networks = first.student.backbone, untrained(first, device).network
        found = results.without_labels(run, recipe, *networks, images)
        table = [{"measure": name.replace("_", " "), **values} for name, values in found.items()]
        _print(table, run, start_resume.conclude(run, recipe).sentence, quiet=quiet)
    dist.barrier()
    return found


def _conclude(
    run: Run, first: Candidate, train: Images | None, found: Found, *, quiet: bool
) -> None:
    """The map, the verdict and the report of a run; the table of either."""
    table: list[dict[str, Any]] = []
    for name, result in found.items():
        if name != "baselines":
            table += [{"measure": f"{name} {key}", **_beside(result, key)} for key in _told(result)]
    if not any(row[UNTRAINED] for row in table):
        table = [{word: v for word, v in row.items() if word != UNTRAINED} for row in table]
    sentence = None
    if run.recipe_path.exists():
        recipe = saved_recipe(run)
        if train is not None and isinstance(first.network, Backbone):
            results.draw_map(run, recipe, first.network, train)
        sentence = start_resume.conclude(run, recipe).sentence
    _print(table, run, sentence, quiet=quiet, notes=_notes(found))


def _told(result: Mapping[str, Any]) -> list[str]:
    """Names of the numbers that a person reads; all, where no one of them stands for the rest."""
    own = [name for name in result if not name.startswith((UNTRAINED, "settings", "beside"))]
    if several := [name for name in own if name.startswith("accuracy_k")]:
        return several
    best = headline(result)
    return own if best is None else [name for name in own if name == best[0] or name in BESIDE]


def _notes(found: Found) -> list[str]:
    """What was chosen on the way, and what a reader should know; each once."""
    said: list[str] = []
    for name, result in found.items():
        if name == "baselines":
            continue
        chosen = [f"{w.replace('_', ' ')} {result[w]:g}" for w in CHOSEN if w in result]
        if chosen:
            held = result.get("held_out_accuracy")
            how = "without a choice" if held is None else f"{held:.1%} of a held-out tenth"
            said.append(f"{name}: {' and '.join(chosen)} won ({how}).")
        settings = result.get("settings", {})
        said += [f"{name}: {settings['note']}"] if "note" in settings else []
        said += settings.get("notes", ())
    return list(dict.fromkeys(said))


def _beside(result: Mapping[str, Any], name: str) -> dict[str, str]:
    """One number of a result for each network that has it."""
    values = {"trained": result[name], UNTRAINED: result.get(f"{UNTRAINED}_{name}")}
    values |= {word: numbers.get(name) for word, numbers in result.get("beside", {}).items()}
    return {word: in_words(value, name) for word, value in values.items()}


def _print(
    table: list[dict[str, Any]],
    run: Run,
    sentence: str | None,
    *,
    quiet: bool,
    notes: Sequence[str] = (),
) -> None:
    if quiet:
        return
    console = Console()
    console.print(build_table(table))
    lines = [*notes, *([sentence, f"Report: {run.report}"] if sentence else [f"{run.results}"])]
    console.print("\n".join(lines), highlight=False, markup=False)


def _data(run: Run, candidates: Sequence[Candidate]) -> Data:
    """How images are kept: large enough for every network's view."""
    largest = max(c.spec.resize for c in candidates)
    if not run.recipe_path.exists():
        return Data(store_size=largest)
    data = saved_recipe(run).data
    return replace(data, store_size=max(data.store_size, largest))


def _labeled(
    data: Data, labeled: str, test: str | None, device: torch.device
) -> tuple[Images, Images | None]:
    """Labeled images to learn from, and those to be tested on if they lie apart."""
    splits = splits_of(labeled)
    held = test if test is not None else labeled
    train = open_source(labeled, labels=True, split="train" if "train" in splits else None)

    def loaded(source: Any) -> Images:
        return load_images(source, store_size=data.store_size, channels=data.channels).to(device)

    if test is None and "test" not in splits:
        return loaded(train), None
    there = "test" if "test" in splits_of(held) else None
    return loaded(train), loaded(open_source(held, labels=True, split=there))


def objects(word: str, splits: Sequence[str]) -> DetectionDataset:
    """The first of these splits that the data have; of a VOCdevkit, from every year with it."""
    for split in splits:
        years = sorted(Path(word).glob(f"VOC*/ImageSets/Main/{split}.txt"))
        try:
            return load_detection_dataset([path.parents[2] for path in years] or word, split)
        except UserError as error:
            if "no split" not in str(error) or split == splits[-1]:
                raise
    raise AssertionError("there is no split to look for")


def voc_folder(word: str) -> str | None:
    """The folder of one year of VOC that a word means, if it means one: 2007 of a VOCdevkit."""
    years = (Path(word), Path(word) / "VOC2007")
    return next((str(p) for p in years if (p / "ImageSets" / "Main").is_dir()), None)
