"""Measure evaluation beside its network alone: the rows embed, linear and fine_tune of --all."""

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from selfsight.bench.backbone_speed_limit import BackbonePass, PassTimes, time_forward, time_passes
from selfsight.bench.step_breakdown import Breakdown
from selfsight.bench.timer import peak_memory, reset_peak_memory, synchronize
from selfsight.data import Source
from selfsight.evals import fine_tune_settings, linear_probe_settings
from selfsight.evals.classifier_settings import ClassifierSettings
from selfsight.evals.compiled_backbone import CompiledBackbone
from selfsight.evals.eval_images import EvalImages
from selfsight.evals.extract_features import features
from selfsight.evals.labeled_data import LabeledData
from selfsight.evals.train_classifier import ClassifierEvaluator
from selfsight.recipe import Recipe, eval_transform
from selfsight.runs.environment import device_name
from selfsight.train.compile import is_compiled
from selfsight.train.cudnn_and_determinism import configure_torch
from selfsight.train.step import DTYPES

EVALUATIONS = ("embed", "linear", "fine_tune")
REST = "batch norm, gaps and all else"


def measure_evaluation(
    name: str,
    recipe: Recipe,
    source: Source,
    device: torch.device,
    *,
    seconds: float,
    times: PassTimes,
) -> Breakdown:
    """Measure one of EVALUATIONS with the network of a recipe, on labeled images.

    The limit is the network alone: forward in evaluation mode, or for fine-tuning forward and
    backward. Both are compiled on a GPU, as in evaluations that take minutes; a short one would not
    compile. `embed` runs as `selfsight embed --precision bf16` does, from decoded crops.
    """
    configure_torch(recipe, device)
    torch.manual_seed(recipe.seed)
    transform, n = eval_transform(recipe), recipe.batch_size
    dtype = DTYPES[recipe.precision]
    autocast = None if dtype == torch.float32 else dtype
    backbone = recipe.backbone.build().to(device)
    compiled = is_compiled(recipe, device)
    images = EvalImages(source, transform, device)
    reset_peak_memory(device)

    def embed(repeats: int) -> None:
        network = CompiledBackbone(backbone, n) if compiled else backbone
        for _ in range(repeats):
            features(network, images, transform, batch_size=n, autocast=autocast)

    run: Callable[[int], None] = embed
    per_run = len(images)
    if name != "embed":
        data = LabeledData(
            train=images, test=images, transform=transform, device=device, autocast=autocast
        )
        run, per_run = _training(name, recipe, backbone, data, compiled)
    torch.backends.cudnn.benchmark = False  # as in a process that only evaluates
    ms = 1000 * n / _images_per_second(run, per_run, device, seconds)
    configure_torch(recipe, device)
    memory = peak_memory(device)
    if name == "fine_tune":
        one = BackbonePass(n, transform.size, True)
        limit = time_passes(recipe, Counter([one]), device, seconds, times)[one]
    else:
        limit = time_forward(recipe, n, transform.size, device, seconds)
    return Breakdown(
        recipe=name,
        device=device_name(device),
        batch_size=n,
        timings=(),
        images_per_second=1000 * n / ms,
        limit=1000 * n / limit,
        fraction_of_limit=limit / ms,
        data_wait=0.0,
        first_step=0.0,
        step_mode="plain",
        memory=memory,
        storage="cache",
        decoder="cpu",
        overhead={REST: ms - limit},
    )


def _training(
    name: str, recipe: Recipe, backbone: nn.Module, data: LabeledData, compiled: bool
) -> tuple[Callable[[int], None], int]:
    """A function that trains a classifier for some epochs, and how many images an epoch has."""
    settings = _settings(name, recipe)
    head = (settings.head.lr,)

    def run(epochs: int) -> None:
        training = settings.with_epochs(epochs)
        evaluator = ClassifierEvaluator(data=data, training=training, compiled=compiled)
        evaluator.fit(backbone, data, head)

    count = len(data.train_index)
    return run, count // min(settings.batch_size, count) * min(settings.batch_size, count)


def _settings(name: str, recipe: Recipe) -> ClassifierSettings:
    """Published settings with the batch of the recipe; ResNets are fine-tuned by MoCo's SGD."""
    linear = linear_probe_settings.PUBLISHED["moco"]
    if name == "linear":
        settings = linear
    elif recipe.backbone.name.startswith("vit"):
        settings = fine_tune_settings.PUBLISHED["mocov3_vit"]
    else:
        settings = replace(linear, backbone=replace(linear.head, lr=0.01))
    return replace(settings, batch_size=recipe.batch_size)


def _images_per_second(
    run: Callable[[int], None], per_run: int, device: torch.device, seconds: float
) -> float:
    """Steady speed of `run(n)`, without the time to start."""

    def spent(repeats: int) -> float:
        synchronize(device)
        began = time.perf_counter()
        run(repeats)
        synchronize(device)
        return time.perf_counter() - began

    run(1)  # libraries choose kernels
    first = spent(1)
    more = max(1, math.ceil(3 * seconds / first))
    return more * per_run / max(spent(1 + more) - first, 1e-9)
