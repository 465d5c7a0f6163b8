"""Measure an encoder beside the untrained one, and write down what was found."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn

from selfsight import dist, rng
from selfsight.data import Images
from selfsight.evals.baselines import baselines
from selfsight.evals.features import Features, features
from selfsight.evals.knn import KNN
from selfsight.evals.label_free import LabelFreeEvaluator
from selfsight.evals.labeled_data import LabeledData
from selfsight.evals.linear import LinearProbe
from selfsight.evals.linear_sgd import LinearSGDProbe
from selfsight.evals.protocols import Evaluator, protocol
from selfsight.evals.splits import Split, saved_split, stratified
from selfsight.options import EVAL_DEFAULTS, EvalOptions
from selfsight.recipe import Recipe
from selfsight.run_folder import Run, plain
from selfsight.runs.encoders import UNTRAINED, Candidate, evaluation_view
from selfsight.runs.report_data import write_map, write_neighbors, write_views

ONLINE = 5000  # images looked at during training: more would cost more than the steps between
Made = TypeVar("Made")
Seen = dict[str, tuple[Features, Features | None]]
BASELINES = "pixels, colors and the untrained backbone"
SHOWN = 5000  # images among which the report looks for neighbors


def online_knn(recipe: Recipe, images: Images) -> KNN | None:
    """kNN among some of the images that are learned from, if they have labels."""
    if images.labels is None:
        return None
    some = _some(images, ONLINE, recipe.seed)
    split = stratified(images.labels.cpu()[some], seed=recipe.seed)
    data = LabeledData(
        train=images,
        spec=evaluation_view(recipe),
        split=Split(some[split.train], some[split.test]),
    )
    return KNN(data=data, ks=(20,))


def with_labels(
    run: Run,
    candidates: Sequence[Candidate],
    train: Images,
    test: Images | None,
    options: EvalOptions = EVAL_DEFAULTS,
    *,
    names: Sequence[str] = ("knn", "linear"),
    said: Mapping[str, Any] | None = None,
) -> dict[str, dict[str, Any]]:
    """Each protocol of labeled images, as `scored` does, and what needs no network at all.

    `said` goes into the settings of every result.
    """
    source = options.features
    about = {**(said or {}), "features": source, "seed": options.seed}
    options = replace(options, split_folder=options.split_folder or run.path / "splits")
    split = None
    if test is None:
        split = _alike(partial(saved_split, run.path / "splits", train, seed=options.seed))
    sets = {
        c.word: LabeledData(
            train=train,
            test=test,
            split=split,
            spec=c.spec,
            progress=True,
            shared=dist.world_size() > 1,
        )
        for c in candidates
    }
    seen: Seen = {}
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        file = name if source == "backbone" else f"{name}.{source}"

        def make(candidate: Candidate, name: str = name) -> Evaluator:
            return _alike(partial(protocol, name, sets[candidate.word], options))

        found[file] = scored(run, file, candidates, make, about=about, seen=seen)
    if "knn" in names and len(candidates) > 1 and candidates[1].word == UNTRAINED:
        one = KNN(data=sets[UNTRAINED], ks=options.neighbor_counts, temperature=options.temperature)
        found["baselines"] = {
            **baselines(one, candidates[1].network),
            "settings": one.settings() | about | {"features": BASELINES},
        }
        write(run, "baselines", found["baselines"])
    return found


def scored(
    run: Run,
    name: str,
    candidates: Sequence[Candidate],
    make: Callable[[Candidate], Evaluator],
    *,
    about: dict[str, Any],
    seen: Seen | None = None,
) -> dict[str, Any]:
    """One protocol's numbers for the first candidate, those of the others beside, and a file.

    The file is written once the first has its numbers, and again with each other's.
    """
    found: dict[str, Any] = {}
    for candidate in candidates:
        evaluator = make(candidate)
        numbers = _numbers(evaluator, candidate, {} if seen is None else seen)
        if candidate is candidates[0]:
            found = {**numbers, "settings": _settings(evaluator) | about}
        elif candidate.word == UNTRAINED:
            found |= {f"untrained_{key}": value for key, value in numbers.items()}
        else:
            found.setdefault("beside", {})[candidate.word] = numbers
        write(run, name, found)
    return found


def _alike(make: Callable[[], Made]) -> Made:
    """What every process makes from files that the first one writes."""
    made = make() if dist.rank() == 0 else None
    dist.barrier()
    return make() if made is None else made


def _numbers(evaluator: Evaluator, candidate: Candidate, seen: Seen) -> dict[str, float]:
    """The evaluator's numbers; features of the same images are computed once for all."""
    if (
        not isinstance(evaluator, KNN | LinearProbe | LinearSGDProbe)
        or evaluator.data.few is not None
    ):
        return evaluator(candidate.network)
    if candidate.word not in seen:
        seen[candidate.word] = evaluator.data.features(candidate.network)
    return evaluator.score(*seen[candidate.word])


def _settings(evaluator: Evaluator) -> dict[str, Any]:
    """What decided the numbers: the protocol's settings, and what was learned from and scored."""
    own = evaluator.settings()
    data = getattr(evaluator, "data", None)
    if not isinstance(data, LabeledData):
        return own
    learned, scored = data.labels()
    return own | {
        **({"labels": data.few_words} if data.few_words else {}),
        "train": len(learned),
        "test": len(scored),
        "split": "80/20, stratified, in splits/" if data.split else "as given",
        "view": f"{data.spec.size} px of {data.spec.resize}",
        "notes": [*own.get("notes", ()), *data.notes],
    }


def write(run: Run, name: str, result: dict[str, Any]) -> None:
    """Keep a result, by the first process; what is not a number is null."""
    if dist.rank() == 0:
        run.write_result(name, plain(result))


def without_labels(
    run: Run, recipe: Recipe, trained: nn.Module, untrained: nn.Module, images: Images
) -> dict[str, Any]:
    """What can be said of any images: each measure, trained and untrained."""
    measure = LabelFreeEvaluator(images=images, views=recipe.views, seed=recipe.seed, progress=True)
    after, before = measure(trained), measure(untrained)
    found = {name: {"trained": after[name], "untrained": before[name]} for name in after}
    run.write_result("label_free", {**found, "settings": measure.settings()})
    return found


def draw_views(run: Run, recipe: Recipe, images: Images) -> None:
    """The views actually used, for the report."""
    write_views(run, images, recipe.views, recipe.seed)


def draw_map(run: Run, recipe: Recipe, trained: nn.Module, images: Images) -> None:
    """The map and the nearest neighbors, for the report."""
    some = _some(images, SHOWN, recipe.seed)
    found = features(trained, images, evaluation_view(recipe), index=some, progress="images")
    write_map(run, images, found)
    write_neighbors(run, images, found)


def _some(images: Images, count: int, seed: int) -> torch.Tensor:
    position = torch.arange(min(count, len(images)))
    key = rng.key(seed, "measure")
    return rng.shuffled(key, len(images), position).sort().values
