"""Train a classifier on labeled images and measure it on images that it was not trained on.

A head is solved on frozen features. Without test images, every labeled image is predicted by a head
trained on the other folds, so that few labels give both a classifier trained on all of them and a
measure. A network that is fine-tuned is trained once, without the images that measure it.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from selfsight.errors import UserError
from selfsight.evals.calibration import calibration_error, fit_temperature
from selfsight.evals.classifier_settings import ClassifierSettings
from selfsight.evals.extract_features import Features, features
from selfsight.evals.fine_tune_settings import adamw
from selfsight.evals.labeled_data import LabeledData
from selfsight.evals.linear_lbfgs import (
    WEIGHT_DECAYS,
    column_statistics,
    hold_out_tenth,
    logistic_regression,
    standardize,
)
from selfsight.evals.prediction_scores import score_predictions
from selfsight.evals.stratified_splits import FOLDS, Split, assign_folds, stratified
from selfsight.evals.train_classifier import ClassifierEvaluator
from selfsight.runs.build_result import collect_scores
from selfsight.terminal.progress import track

BATCH_SIZE = 64
FINE_TUNE = ClassifierSettings(
    source="ours, with the optimizer of MoCo v3's transfer (arXiv:2104.02057); the head starts as "
    "the linear classifier of the frozen features (arXiv:2202.10054)",
    epochs=30,
    batch_size=BATCH_SIZE,
    head=adamw(4e-3, weight_decay=0.05, warmup_epochs=1, batch_size=BATCH_SIZE),
    backbone=adamw(4e-3, weight_decay=0.05, warmup_epochs=1, batch_size=BATCH_SIZE),
    crop_scale=(0.5, 1.0),
)


class HeldOut(NamedTuple):
    """Logits of held-out images, plain and calibrated."""

    y: Int64[Tensor, " n"]
    logits: Float[Tensor, "n c"]
    calibrated: Float[Tensor, "n c"]


class Choice(NamedTuple):
    """The best of several classifiers on held-out images, its temperature, and its logits."""

    number: int
    temperature: float
    held_out: HeldOut


class TrainedClassifier(NamedTuple):
    """A head whose softmax is calibrated, the network if it was fine-tuned, and the measures."""

    head: nn.Linear
    network: nn.Module | None
    measured: dict[str, Any]
    settings: dict[str, Any]


def train_head(network: nn.Module, data: LabeledData, *, seed: int) -> TrainedClassifier:
    """Solve a linear head on the features of the frozen network."""
    train, test = data.features(network)
    head, weight_decay, choice = select_head(train, data.num_classes, seed=seed)
    tested = None
    if test is not None:
        assert test.y is not None
        tested = _test(head(test.h), test.y, choice)
    measured = measure(choice, tested, data.class_names)
    measured |= {"weight_decay": weight_decay, "trained_on": len(train.h)}
    settings = {"head": "linear", "weight_decays": list(WEIGHT_DECAYS), "folds": FOLDS}
    return TrainedClassifier(_sharpen(head, choice), None, measured, settings | {"seed": seed})


def fine_tune(
    network: nn.Module, data: LabeledData, training: ClassifierSettings, *, seed: int
) -> TrainedClassifier:
    """Train head and network on four fifths of the images; a fifth measures the classifier.

    With test images only a tenth is held out, to fit the temperature.
    """
    labels = data.train.labels
    assert labels is not None
    rows, left_out = _leave_out(data, seed=seed)
    if data.test is None:
        data = replace(data, split=Split(rows, left_out))
    training = replace(training, interpolation=data.transform.interpolation)
    evaluator = ClassifierEvaluator(data=data.with_subset(rows), training=training, seed=seed)
    start = features(network, data.train, data.transform, index=rows, device=data.device)
    head, _, _ = select_head(start, data.num_classes, seed=seed)
    model, _ = evaluator.fit(network, evaluator.data, (training.head.lr,), head)
    choice = tested = None
    if len(left_out):
        found = features(
            model.backbone, data.train, data.transform, index=left_out, device=data.device
        )
        assert found.y is not None
        fold = assign_folds(found.y, seed=seed).to(found.y.device)
        choice = choose_classifier(model.logits(found.h).detach(), found.y, fold)
    if data.test is not None:
        y, logits = evaluator.test_logits(model)
        tested = _test(logits, y, choice)
    trained = model.heads[0]
    assert isinstance(trained, nn.Linear)
    measured = measure(choice, tested, data.class_names) | {"trained_on": len(rows)}
    settings = asdict(training) | {"head": "fine-tuned", "seed": seed}
    return TrainedClassifier(_sharpen(trained, choice), model.backbone, measured, settings)


def _leave_out(data: LabeledData, *, seed: int) -> tuple[Int64[Tensor, " a"], Int64[Tensor, " b"]]:
    """Images to train on, and images to hold out: none if no class has two images."""
    y = data.labels()[0]
    if data.test is None:
        split = stratified(y, seed=seed, class_names=data.class_names)
        return split.train, split.test
    tenth = hold_out_tenth(y, seed=seed)
    if tenth is None:
        return data.train_index, torch.zeros(0, dtype=torch.long)
    return data.train_index[tenth.train], data.train_index[tenth.test]


def select_head(
    train: Features, num_classes: int, *, seed: int
) -> tuple[nn.Linear, float, Choice | None]:
    """Select the weight decay over folds, and solve the head on all images with it.

    Also return the weight decay, and the held-out predictions; if no class has two images, the
    middle weight decay is used and there are no predictions.
    """
    h, y = train.h, train.y
    assert y is not None
    if not bool(h.isfinite().all()):
        raise UserError(
            "The encoder gives features that are not finite, so that no classifier can be trained "
            "on them. Use a checkpoint from before its training diverged, or another encoder."
        )
    fold = assign_folds(y, seed=seed).to(y.device)
    several = y.bincount(minlength=num_classes)[y] > 1  # the only image of a class is not held out
    choice, number = None, len(WEIGHT_DECAYS) // 2
    if bool(several.any()):
        logits = h.new_zeros(len(WEIGHT_DECAYS), len(h), num_classes)
        for part in track(fold[several].unique().tolist(), "solving for each fold"):
            inside = (fold == part) & several
            x, like = h[inside], h[~inside]
            weights = logistic_regression(
                standardize(like, like),
                y[~inside],
                weight_decays=WEIGHT_DECAYS,
                num_classes=num_classes,
            )
            logits[:, inside] = torch.einsum("nd,sdc->snc", standardize(x, like), weights)
        choice = choose_classifier(logits[:, several], y[several], fold[several])
        number = choice.number
    decay = WEIGHT_DECAYS[number]
    return _solve(h, y, decay, num_classes=num_classes), decay, choice


def choose_classifier(
    logits: Float[Tensor, "s n c"], y: Int64[Tensor, " n"], fold: Int64[Tensor, " n"]
) -> Choice:
    """Choose the classifier whose cross-entropy on held-out images is lowest when calibrated.

    Accuracy is not used for the choice: with few images, several classifiers differ only by chance,
    and the reported accuracy would be the luckiest. The temperature of each fold is fitted on the
    other folds, so that calibration is also measured on held-out images.
    """
    temperatures = [fit_temperature(values, y) for values in logits]
    losses = [
        float(F.cross_entropy(values.double() / temperature, y))
        for values, temperature in zip(logits, temperatures, strict=True)
    ]
    number = min(range(len(losses)), key=losses.__getitem__)
    best = logits[number]
    calibrated = torch.zeros_like(best)
    for part in fold.unique().tolist():
        inside, outside = fold == part, fold != part
        others = bool(outside.any())
        calibrated[inside] = best[inside] / (
            fit_temperature(best[outside], y[outside]) if others else 1.0
        )
    return Choice(number, temperatures[number], HeldOut(y, best, calibrated))


def measure(
    choice: Choice | None, tested: HeldOut | None, class_names: Sequence[str]
) -> dict[str, Any]:
    """Measure on test images, or else on held-out ones; without either there are no numbers."""
    about = {"temperature": 1.0 if choice is None else choice.temperature}
    about |= {"calibrated": choice is not None}
    found = tested or (choice and choice.held_out)
    if found is None:
        return about | {"n": 0}
    scores = score_predictions(found.y, {"accuracy": found.logits.argmax(dim=1)})
    return collect_scores({"classifier": scores}, class_names) | {
        **about,
        "guessed": int(found.y.bincount().max()) / len(found.y),
        "measured_on": "held-out images" if tested is None else "test images",
        "calibration_error_before": calibration_error(found.logits, found.y),
        "calibration_error": calibration_error(found.calibrated, found.y),
    }


def _test(logits: Float[Tensor, "n c"], y: Int64[Tensor, " n"], choice: Choice | None) -> HeldOut:
    temperature = 1.0 if choice is None else choice.temperature
    return HeldOut(y, logits, logits / temperature)


def _solve(
    h: Float[Tensor, "n d"], y: Int64[Tensor, " n"], weight_decay: float, *, num_classes: int
) -> nn.Linear:
    """Solve logistic regression on standardized features; return a layer for plain features."""
    x, decays = standardize(h, h), (weight_decay,)
    weights = logistic_regression(
        x, y, weight_decays=decays, num_classes=num_classes, progress="solving, at most"
    )
    mean, std = (column.double() for column in column_statistics(h))
    plain = weights[0, :-1].double() / std[:, None]
    head = nn.Linear(h.shape[1], num_classes, device=h.device)
    with torch.no_grad():
        head.weight.copy_(plain.T)
        head.bias.copy_(weights[0, -1].double() - mean @ plain)
    return head.requires_grad_(False)


def _sharpen(head: nn.Linear, choice: Choice | None) -> nn.Linear:
    """Divide the logits by the temperature, so that their softmax is the confidence."""
    temperature = 1.0 if choice is None else choice.temperature
    sharp = nn.Linear(head.in_features, head.out_features, device=head.weight.device)
    with torch.no_grad():
        sharp.weight.copy_(head.weight / temperature)
        sharp.bias.copy_(head.bias / temperature)
    return sharp.requires_grad_(False)
