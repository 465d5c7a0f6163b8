"""Measure an encoder by the names of protocols, and tell what was found."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from sightline import dist
from sightline.data import Pictures, open_source, splits_of
from sightline.data import load as load_pictures
from sightline.errors import UserError
from sightline.evals.analysis import Analysis
from sightline.evals.detection import Objects, open_objects
from sightline.evals.multilabel import voc07
from sightline.evals.protocols import Asked, named, protocol
from sightline.nn import Backbone
from sightline.recipe import Data
from sightline.runs import Run
from sightline.train import measure, whole
from sightline.train.candidates import UNTRAINED, Candidate, candidate, saved_recipe, untrained
from sightline.train.compare import headline, in_words
from sightline.train.show import rows
from sightline.views import View, moco_v2

DEFAULT = ("knn", "linear")
TEST_SPLITS = ("test", "val")
Found = dict[str, dict[str, Any]]


def evaluate(
    run: Run,
    word: str,
    device: torch.device,
    *,
    labeled: str | None,
    test: str | None,
    protocols: Sequence[str] | None,
    asked: Asked,
    features: str,
    image_size: int | None,
    against: Sequence[str],
    beside: bool,
    quiet: bool,
) -> Found:
    """Numbers of the encoder that `word` names, written to the folder `run`.

    Without labels and names of protocols, what can be said of a run without labels.
    """
    _refuse(protocols or DEFAULT, labeled, test, asked, named_any=bool(protocols))
    dist.start(device.type)
    try:
        first = candidate(word, device, features, image_size)
        if labeled is None and not protocols:
            return _without_labels(run, first, device, quiet=quiet)
        candidates = [first]
        candidates += [untrained(first, device, features)] if beside else []
        candidates += [candidate(other, device, features, image_size) for other in against]
        found: Found = {}
        by_kind: dict[str, list[str]] = {"labelled": [], "boxes": [], "pictures": [], "marks": []}
        for name in protocols or DEFAULT:
            marked = name.startswith("svm") and labeled is not None and _is_voc(labeled)
            by_kind["marks" if marked else named(name).opens].append(name)
        for name in by_kind["marks"]:
            found |= _with_marks(run, name, candidates, str(labeled), asked)
        for name in by_kind["boxes"]:
            found |= _with_boxes(run, name, candidates, str(labeled), test, asked)
        train = None
        if by_kind["labelled"]:
            train, tested = _labelled(_data(run, first), str(labeled), test, device)
            found |= measure.with_labels(
                run,
                candidates,
                train,
                tested,
                names=by_kind["labelled"],
                asked=asked,
                source=features,
            )
        if by_kind["pictures"]:
            found |= _analysed(run, candidates, labeled, device, asked)
        if dist.rank() == 0:
            _conclude(run, first, train, found, quiet=quiet)
        dist.barrier()
        return found
    finally:
        dist.stop()


def _refuse(
    protocols: Sequence[str],
    labeled: str | None,
    test: str | None,
    asked: Asked,
    *,
    named_any: bool,
) -> None:
    """Tell mistakes before any weights are read."""
    if test is not None and labeled is None:
        raise UserError("--test needs --labeled: the labelled pictures that are learnt from.")
    kinds = {name: named(name) for name in protocols}
    if named_any and labeled is None:
        for name, kind in kinds.items():
            if kind.opens != "pictures":
                raise UserError(f"{name} needs --labeled: the pictures that it learns from.")
    if asked.flags and not any(kind.flags for kind in kinds.values()):
        raise UserError(
            f"{asked.flags[0]} is a setting of protocols that train, and none of "
            f"{', '.join(protocols)} does. See: sightline evaluate --protocols"
        )


def _with_boxes(
    run: Run,
    name: str,
    candidates: Sequence[Candidate],
    labeled: str,
    test: str | None,
    asked: Asked,
) -> Found:
    """Detection: the split called train to learn from, and test or val to be scored on."""
    data = (_objects(labeled, ("train", "trainval")), _objects(test or labeled, TEST_SPLITS))
    evaluator = protocol(name, data, asked)
    about = {"features": "backbone", "seed": asked.seed}
    return {name: measure.scored(run, name, candidates, lambda _: evaluator, about=about)}


def _with_marks(
    run: Run, name: str, candidates: Sequence[Candidate], labeled: str, asked: Asked
) -> Found:
    """An SVM on pictures with several classes each: a folder of VOC 2007."""
    data = voc07(labeled, progress=True, shared=dist.world_size() > 1)
    evaluator = protocol(name, data, asked)
    about = {"features": "backbone", "seed": asked.seed}
    return {name: measure.scored(run, name, candidates, lambda _: evaluator, about=about)}


def _analysed(
    run: Run,
    candidates: Sequence[Candidate],
    labeled: str | None,
    device: torch.device,
    asked: Asked,
) -> Found:
    """What the features look like: of a run's own pictures, or of those that were given."""
    first = candidates[0]
    views: Sequence[View] = moco_v2(first.spec.size)
    if first.student is not None:
        recipe = saved_recipe(run)
        views = recipe.views
    if labeled is not None:
        source = open_source(labeled)
        pictures = load_pictures(source, store_size=_data(run, first).store_size).to(device)
    elif first.student is not None:
        pictures = whole.pictures_of(recipe, device)
    else:
        raise UserError("--backbone needs --labeled: the pictures to look at.")
    evaluator = protocol("analysis", (pictures, views), asked)
    assert isinstance(evaluator, Analysis)
    found: dict[str, Any] = evaluator.write(run, first.student or first.network)
    for other in candidates[1:]:
        numbers = evaluator(other.student or other.network)
        found |= {f"{other.word}_{name}": value for name, value in numbers.items()}
    found |= {"settings": evaluator.settings()}
    measure.write(run, "analysis", found)
    return {"analysis": found}


def _without_labels(run: Run, first: Candidate, device: torch.device, *, quiet: bool) -> Found:
    if first.student is None:
        raise UserError("--backbone needs --labeled: labelled pictures to measure it with.")
    recipe = saved_recipe(run)
    pictures = whole.pictures_of(recipe, device)
    found: Found = {}
    if dist.rank() == 0:
        networks = first.student.backbone, untrained(first, device).network
        found = measure.without_labels(run, recipe, *networks, pictures)
        table = [{"measure": name.replace("_", " "), **values} for name, values in found.items()]
        _print(table, run, whole.conclude(run, recipe).sentence, quiet=quiet)
    dist.barrier()
    return found


def _conclude(
    run: Run, first: Candidate, train: Pictures | None, found: Found, *, quiet: bool
) -> None:
    """The map, the verdict and the report of a run; the table of either."""
    table: list[dict[str, Any]] = []
    for name, result in found.items():
        best = headline(result)
        numbers = [best[0]] if best else _own_numbers(result)
        table += [{"measure": f"{name} {key}", **_beside(result, key)} for key in numbers]
    if not any(row[UNTRAINED] for row in table):
        table = [{word: v for word, v in row.items() if word != UNTRAINED} for row in table]
    sentence = None
    if run.recipe_path.exists():
        recipe = saved_recipe(run)
        if train is not None and isinstance(first.network, Backbone):
            measure.draw_map(run, recipe, first.network, train)
        sentence = whole.conclude(run, recipe).sentence
    notes = {note for r in found.values() for note in r.get("settings", {}).get("notes", ())}
    _print(table, run, sentence, quiet=quiet, notes=sorted(notes))


def _own_numbers(result: Mapping[str, Any]) -> list[str]:
    """Names of the first network's numbers, where no one of them stands for all."""
    return [name for name in result if f"{UNTRAINED}_{name}" in result]


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
    console.print(rows(table))
    lines = [*notes, *([sentence, f"Report: {run.report}"] if sentence else [f"{run.results}"])]
    console.print("\n".join(lines), highlight=False, markup=False)


def _data(run: Run, first: Candidate) -> Data:
    if run.recipe_path.exists():
        return saved_recipe(run).data
    return Data(store_size=first.spec.resize)


def _labelled(
    data: Data, labeled: str, test: str | None, device: torch.device
) -> tuple[Pictures, Pictures | None]:
    """Labelled pictures to learn from, and those to be tested on if they lie apart."""
    splits = splits_of(labeled)
    held = test if test is not None else labeled
    train = open_source(labeled, labels=True, split="train" if "train" in splits else None)

    def loaded(source: Any) -> Pictures:
        return load_pictures(source, store_size=data.store_size, channels=data.channels).to(device)

    if test is None and "test" not in splits:
        return loaded(train), None
    there = "test" if "test" in splits_of(held) else None
    return loaded(train), loaded(open_source(held, labels=True, split=there))


def _objects(word: str, splits: Sequence[str]) -> Objects:
    """The first of these splits that the data have."""
    for split in splits[:-1]:
        try:
            return open_objects(word, split)
        except UserError as error:
            if "no split" not in str(error):
                raise
    return open_objects(word, splits[-1])


def _is_voc(word: str) -> bool:
    return (Path(word) / "ImageSets" / "Main").is_dir()
