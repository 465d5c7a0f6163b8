"""Measure encoders on the same images, with intervals: with labels or without."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from selfsight.data import ImageStore
from selfsight.evals.bootstrap_intervals import resampled_counts
from selfsight.evals.extract_features import Features
from selfsight.evals.feature_statistics import effective_rank_of_gram, find_same_image
from selfsight.evals.knn import KNN
from selfsight.evals.label_free import LabelFreeEvaluator
from selfsight.evals.labeled_data import LabeledData
from selfsight.evals.linear_lbfgs import LinearProbe
from selfsight.evals.prediction_scores import PerImage, Scores, score_per_image, score_predictions
from selfsight.evals.stratified_splits import FOLDS, Split, assign_folds
from selfsight.views import View

MAX_NEIGHBORS = 20
LABEL_FREE_IMAGES = 1024
RANK_RESAMPLES = 100  # an eigenvalue problem each


def measure_labeled(network: nn.Module, data: LabeledData, *, seed: int) -> dict[str, Scores]:
    """Accuracy of a linear probe and of kNN on held-out images.

    Without test images, each labeled image is predicted by a probe trained on the other folds, and
    by kNN among all other images, so that no labels are set aside.
    """
    train, test = data.features(network)
    assert train.y is not None
    per_class = max(1, len(train.y) // data.num_classes)
    knn = KNN(data=data, ks=(min(MAX_NEIGHBORS, per_class),))
    if test is not None:
        linear = LinearProbe(data=data, seed=seed).score(train, test)
    else:
        linear = _cross_validate(data, train, seed)
    return {"linear": linear, "knn": knn.score(train, test)}


def _cross_validate(data: LabeledData, train: Features, seed: int) -> Scores:
    assert train.y is not None
    fold = assign_folds(train.y, seed=seed)
    predictions = torch.zeros_like(train.y)
    for number in range(FOLDS):
        held_out = (fold == number).nonzero()[:, 0]
        others = (fold != number).nonzero()[:, 0]
        if not len(held_out) or len(train.y[others].unique()) < 2:
            continue
        probe = LinearProbe(data=replace(data, split=Split(others, held_out)), seed=seed)
        found = probe.score(_select(train, others), _select(train, held_out))
        predicted = torch.from_numpy(found["per_image"].predictions)
        predictions[held_out.to(predictions.device)] = predicted.to(predictions.device)
    return score_predictions(train.y, {"accuracy": predictions})


def _select(features: Features, rows: Int64[Tensor, " m"]) -> Features:
    rows = rows.to(features.h.device)
    assert features.y is not None
    return Features(features.h[rows], features.y[rows], features.index[rows])


def measure_label_free(
    network: nn.Module, images: ImageStore, views: Sequence[View], *, seed: int
) -> dict[str, Scores]:
    """Same-image retrieval between two views, and effective rank, of some images."""
    evaluator = LabelFreeEvaluator(
        images=images, views=views, seed=seed, max_images=LABEL_FREE_IMAGES, progress=True
    )
    h1, h2 = evaluator.encode_views(network)
    same = find_same_image(h1, h2).double().cpu().numpy()
    per_image = {
        "retrieval": PerImage(n=len(h1), values={"retrieval": same}),
        "effective_rank": PerImage(
            n=len(h1), values={}, replicates={"effective_rank": resample_rank(h1)}
        ),
    }
    return {name: score_per_image(found) for name, found in per_image.items()}


def resample_rank(h: Float[Tensor, "n d"]) -> Float[np.ndarray, " b"]:
    """Effective rank of these features, then of each of RANK_RESAMPLES resamples."""
    h = h.double()
    counts = torch.from_numpy(next(resampled_counts(len(h)))).T[:RANK_RESAMPLES].to(h)  # [B, N]
    ranks = []
    for count in (torch.ones(len(h)).to(h), *counts):
        if h.shape[0] > h.shape[1]:
            gram = (h * count[:, None]).T @ h
        else:
            rows = h * count.sqrt()[:, None]
            gram = rows @ rows.T
        ranks.append(effective_rank_of_gram(gram).item())
    return np.array(ranks)


def describe_images(data: LabeledData) -> str:
    """Describe the test images and how they were held out."""
    if data.has_test_images:
        return f"{len(data.labels()[1]):,} labeled test images"
    return f"{len(data.train_index):,} labeled images, each held out once in {FOLDS} folds"
