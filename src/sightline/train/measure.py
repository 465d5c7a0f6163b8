"""Measure an encoder beside the untrained one, and write down what was found."""

from typing import Any

import torch
from torch import nn

from sightline import random
from sightline.data import Pictures
from sightline.evals.baselines import baselines
from sightline.evals.features import features
from sightline.evals.knn import KNN
from sightline.evals.label_free import LabelFree
from sightline.evals.linear import Linear
from sightline.evals.pictures import write_map, write_neighbours, write_views
from sightline.evals.splits import Split, saved_split, stratified
from sightline.recipe import Recipe
from sightline.runs import Run
from sightline.views import Centre, for_channels

ONLINE = 5000  # pictures looked at during training: more would cost more than the steps between
SHOWN = 5000  # pictures among which the report looks for neighbours


def evaluation_view(recipe: Recipe) -> Centre:
    """The whole picture for small views; the middle 7/8 for large ones, as is usual."""
    size = recipe.views[0].size
    resize = size if size < 96 else size * 8 // 7
    return for_channels(Centre(size=size, resize=resize), recipe.data.channels)


def online_knn(recipe: Recipe, pictures: Pictures) -> KNN | None:
    """kNN among some of the pictures that are learnt from, if they have labels."""
    if pictures.labels is None:
        return None
    some = _some(pictures, ONLINE, recipe.seed)
    split = stratified(pictures.labels.cpu()[some], seed=recipe.seed)
    return KNN(
        train=pictures,
        spec=evaluation_view(recipe),
        split=Split(some[split.train], some[split.test]),
    )


def with_labels(
    run: Run,
    recipe: Recipe,
    trained: nn.Module,
    untrained: nn.Module,
    train: Pictures,
    test: Pictures | None,
    *,
    k: int = 20,
    temperature: float = 0.07,
    seed: int = 0,
) -> dict[str, dict[str, Any]]:
    """kNN and linear accuracy, trained and untrained, and what needs no network at all."""
    split = saved_split(run.path / "splits", train, seed=seed) if test is None else None
    data: dict[str, Any] = dict(train=train, test=test, split=split, progress=True)
    data["spec"] = evaluation_view(recipe)
    knn = KNN(k=k, temperature=temperature, **data)
    linear = Linear(seed=seed, **data)
    after, before = knn.features(trained), knn.features(untrained)
    about = {
        "train": len(split.train if split else train),
        "test": len(split.test if split else test or ()),
        "features": "backbone",
        "split": "80/20, stratified, in splits/" if split else "as given",
        "notes": list(split.notes) if split else [],
    }
    found: dict[str, dict[str, Any]] = {}
    for name, evaluator in (("knn", knn), ("linear", linear)):
        scores = evaluator.score(*after)
        found[name] = {
            **scores,
            "untrained_accuracy": evaluator.score(*before)["accuracy"],
            "settings": evaluator.settings() | about | {"seed": seed},
        }
    found["baselines"] = baselines(knn, untrained)
    for name, result in found.items():
        run.write_result(name, result)
    return found


def without_labels(
    run: Run, recipe: Recipe, trained: nn.Module, untrained: nn.Module, pictures: Pictures
) -> dict[str, Any]:
    """What can be said of any pictures: each measure, trained and untrained."""
    measure = LabelFree(pictures=pictures, views=recipe.views, seed=recipe.seed, progress=True)
    after, before = measure(trained), measure(untrained)
    found = {name: {"trained": after[name], "untrained": before[name]} for name in after}
    run.write_result("label_free", found)
    return found


def draw_views(run: Run, recipe: Recipe, pictures: Pictures) -> None:
    """The views actually used, for the report."""
    write_views(run, pictures, recipe.views, recipe.seed)


def draw_map(run: Run, recipe: Recipe, trained: nn.Module, pictures: Pictures) -> None:
    """The map and the nearest neighbours, for the report."""
    some = _some(pictures, SHOWN, recipe.seed)
    found = features(trained, pictures, evaluation_view(recipe), index=some, progress="pictures")
    write_map(run, pictures, found)
    write_neighbours(run, pictures, found)


def _some(pictures: Pictures, count: int, seed: int) -> torch.Tensor:
    position = torch.arange(min(count, len(pictures)))
    key = random.key(seed, "measure")
    return random.shuffled(key, len(pictures), position).sort().values
