"""Analyze the features of encoders without labels, by the protocol `analysis`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from selfsight.data import ImageStore, load_images, open_source
from selfsight.data.decoders.scientific_images import is_photo
from selfsight.data.eval_transform import EvalTransform
from selfsight.encoders.load_encoder import EncoderUnderTest
from selfsight.encoders.load_run_networks import find_checkpoint, load_kept_methods
from selfsight.encoders.untrained_network import UNTRAINED
from selfsight.errors import UserError
from selfsight.evals.eval_images import augmentation_size, describe_skipped
from selfsight.evals.feature_analysis import EQCO_NUMBERS, FeatureAnalysis
from selfsight.evals.protocols import build_evaluator
from selfsight.options.eval_options import EvalOptions
from selfsight.run_files.run_folder import Run
from selfsight.runs.open_run_images import open_run_images
from selfsight.runs.result_fingerprint import identify_images
from selfsight.runs.score_encoders import describe_data_set, name_file, write_result
from selfsight.views import View, for_channels, moco_v2

UNTRAINED_QUEUE = (
    "The queue of the untrained network holds random vectors and no keys, so that its bounds and "
    "gradients are left out."
)


def analyze_features(
    run: Run,
    encoders: Sequence[EncoderUnderTest],
    labeled: str | None,
    device: torch.device,
    options: EvalOptions,
    about: Mapping[str, Any],
) -> dict[str, dict[str, Any]]:
    """Analyze features without labels: of the given images, or of the run's training images."""
    first = encoders[0]
    recipe = first.recipe
    views: Sequence[View] = _moco_views(first.transform) if recipe is None else recipe.views
    store_size = augmentation_size(first.transform)
    data = None  # the images that the run was trained on
    if labeled is not None:
        images: ImageStore = load_images(
            open_source(labeled, classes=options.classes),
            store_size=store_size,
            channels=first.transform.channels,
            dtype=first.transform.dtype,
        ).to(device)
        data = identify_images(run, labeled, [images])
    elif recipe is not None and (where := find_checkpoint(first.name)) is not None:
        store_size = recipe.data.store_size
        images = open_run_images(where.run, recipe, device, trust=options.trust)
    else:
        raise UserError("--backbone needs --labeled: the images to analyze.")
    evaluator = build_evaluator("analysis", (images, views), options)
    assert isinstance(evaluator, FeatureAnalysis)
    networks = [encoder.method or encoder.network for encoder in encoders]
    settings, *_ = (evaluator.settings(network) for network in networks)  # checks all of them
    kept = load_kept_methods(run, recipe, device) if recipe and first.name == str(run.path) else ()
    name = name_file("analysis", data)
    result: dict[str, Any] = evaluator.write(run, networks[0], kept, name=name)
    for other, network in zip(encoders[1:], networks[1:], strict=True):
        numbers = evaluator(network)
        if other.name == UNTRAINED:
            if evaluator.analysis.negatives == "queue":
                settings = settings | {"notes": [*settings.get("notes", ()), UNTRAINED_QUEUE]}
                numbers = {k: v for k, v in numbers.items() if k not in EQCO_NUMBERS}
            result |= {f"{UNTRAINED}_{name}": value for name, value in numbers.items()}
        else:
            result.setdefault("against", {})[other.name] = numbers
    if skipped := describe_skipped(images):
        settings = settings | {"notes": [*settings.get("notes", ()), *skipped]}
    about = {**about, **describe_data_set(data)}
    result["settings"] = {**settings, "stored_size": store_size, **about}
    write_result(run, "analysis", result, data)
    return {"analysis": result}


def _moco_views(transform: EvalTransform) -> tuple[View, ...]:
    """MoCo v2's views at the size of a transform, for its kind of images."""
    views = moco_v2(transform.size)
    if is_photo(transform.channels, transform.dtype):
        return views
    ends = {name: getattr(transform, name) for name in ("low", "high", "mean", "std")}
    return tuple(
        replace(for_channels(v, transform.channels, is_color=False), **ends) for v in views
    )
