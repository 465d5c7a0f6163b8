"""Try some steps on random images: which batch fits in memory, how fast they are, what compiles."""

import gc
import itertools
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch

from selfsight import rng
from selfsight.errors import UserError
from selfsight.methods import DataInfo
from selfsight.optim import build_optimizer
from selfsight.ragged_batch import Ragged
from selfsight.recipe import Recipe
from selfsight.train.cuda_graph import CHOICE, RECORDING, WARMUP_STEPS, can_record
from selfsight.train.grad_scaler import GradScaler
from selfsight.train.init_weights import build_method
from selfsight.train.loop import train
from selfsight.train.step import DTYPES, Batch, compute_views
from selfsight.train.training_state import State

TRIAL_STEPS = 2  # in the second one the optimizer has its state
TIMED_SECONDS, TIMED_STEPS = 2.0, 20  # whichever comes first
SLOW_SECONDS = 0.5  # of up to five plain steps


def halve_batch_until_it_fits(recipe: Recipe, device: torch.device, data: DataInfo) -> Recipe:
    """Return the recipe with its batch size halved until a step on one process fits."""
    batch_size = recipe.batch_size // 2
    while batch_size >= 2:
        try:
            smaller = replace(recipe, batch_size=batch_size)
        except UserError:  # for example batch norm in groups that do not divide it
            break
        if _fits(smaller, device, data):
            return smaller
        batch_size //= 2
    raise UserError(
        f"No batch smaller than {recipe.batch_size} that these settings allow fits in the memory "
        "of this device. Use a smaller backbone (--backbone.name resnet18) or smaller views."
    )


def _fits(recipe: Recipe, device: torch.device, data: DataInfo) -> bool:
    """Return whether optimizer steps on random images fit in memory."""
    gc.collect()
    torch.cuda.empty_cache()
    try:
        state = build_trial_state(recipe, device, data)
        batches = (_random_batch(recipe, device, data) for _ in range(TRIAL_STEPS))
        uncompiled = replace(recipe, compile=False)
        for _ in train(state, batches, uncompiled, steps_per_epoch=TRIAL_STEPS, device=device):
            pass
    except torch.OutOfMemoryError:
        return False
    return True


def run_one_step(recipe: Recipe, device: torch.device, data: DataInfo) -> None:
    """Run one step whose batch has the shapes, types and layouts of a batch in training."""
    state = build_trial_state(recipe, device, data)
    batches = itertools.islice(_batches_of_one_image(recipe, device, data), 1)
    for _ in train(state, batches, recipe, steps_per_epoch=1, device=device):
        pass
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure_speed(recipe: Recipe, device: torch.device, data: DataInfo) -> float | None:
    """Images per second of uncompiled training in one process, views included.

    None if torch raises an error, such as one of memory: the run will raise it too, and explain it.
    """
    speed = _time_uncompiled(replace(recipe, compile=False), device, data)
    if device.type == "cuda":
        gc.collect()  # a recorded step refers to itself, and keeps the memory of its graph
        torch.cuda.empty_cache()
    return speed


def _time_uncompiled(recipe: Recipe, device: torch.device, data: DataInfo) -> float | None:
    try:
        state = build_trial_state(recipe, device, data)
        batches = _batches_of_one_image(recipe, device, data)
        steps = CHOICE + TIMED_STEPS
        return time_steps(
            state, batches, recipe, steps_per_epoch=steps, device=device, plain_if_slow=True
        )
    except RuntimeError:
        return None


def time_steps(
    state: State,
    batches: Iterable[Batch],
    recipe: Recipe,
    *,
    steps_per_epoch: int,
    device: torch.device,
    plain_if_slow: bool = False,
) -> float:
    """Train for some steps that are thrown away; returns images per second.

    Where steps may be a CUDA graph, those after the choice are timed. With `plain_if_slow`, plain
    ones are enough if launching their kernels takes no time beside them.
    """
    recorded = can_record(recipe, device)
    untimed = CHOICE if recorded else 1
    steps = train(state, batches, recipe, steps_per_epoch=steps_per_epoch, device=device)
    ends = [time.monotonic()]
    for number, _ in enumerate(steps, 1):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        ends.append(time.monotonic())
        timed, spent = number - untimed, ends[-1] - ends[min(untimed, number)]
        if timed == TIMED_STEPS or (timed > 1 and spent > TIMED_SECONDS):
            break
        is_plain = recorded and WARMUP_STEPS + 1 < number < RECORDING
        if plain_if_slow and is_plain and ends[-1] - ends[WARMUP_STEPS] > SLOW_SECONDS:
            break
    # If training has ended before, the steps after the warm-up, or all but the first, or that one.
    first = next(n for n in (untimed, WARMUP_STEPS, 1, 0) if n < len(ends) - 1 or n == 0)
    seconds = max(ends[-1] - ends[first], 1e-6)
    return max(1, len(ends) - 1 - first) * recipe.batch_size / seconds


def build_trial_state(recipe: Recipe, device: torch.device, data: DataInfo) -> State:
    """The state of a training whose results are thrown away."""
    method = build_method(recipe, device, data)
    optimizer = build_optimizer(
        recipe.optim, method.named_parameters(), batch_size=recipe.batch_size
    )
    return State(method, optimizer, GradScaler(device, enabled=recipe.precision == "fp16"))


def _batches_of_one_image(recipe: Recipe, device: torch.device, data: DataInfo) -> Iterator[Batch]:
    """Batches of views of one random image, a square of the stored size."""
    side, channels = recipe.data.store_size, recipe.data.channels
    index = torch.arange(recipe.batch_size)
    pixels = rng.uniform(rng.key(0, "speed"), index[:1], channels * side**2).float()[0]
    if recipe.data.dtype == "uint8":
        pixels = (255 * pixels).byte()
    sizes = torch.full((len(index), 2), side)
    images = Ragged(pixels, torch.zeros_like(index), sizes, channels, (side, side)).to(device)
    index = index.to(device)
    for epoch in itertools.count():
        views = compute_views(recipe, images, index, epoch)
        yield Batch(views, index % max(1, data.num_classes), index)


def _random_batch(recipe: Recipe, device: torch.device, data: DataInfo) -> Batch:
    index = torch.arange(recipe.batch_size, device=device)
    views = [
        rng.uniform(rng.key(0, "memory", i), index, recipe.data.channels * view.size**2)
        .to(DTYPES[recipe.precision])
        .view(len(index), recipe.data.channels, view.size, view.size)
        for i, view in enumerate(recipe.views)
    ]
    return Batch(views, index % max(1, data.num_classes), index)
