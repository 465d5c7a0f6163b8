"""Measure the components of a training step one by one, and training end to end."""

import contextlib
import copy
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from rich.console import Console
from torch import Tensor, nn

from selfsight import dist
from selfsight.bench.backbone_speed_limit import BackbonePass, PassTimes, count_passes, time_passes
from selfsight.bench.timer import median_ms, peak_memory, reset_peak_memory, synchronize
from selfsight.data import ImageStore, Source
from selfsight.data.cgroup_limits import available_cpus
from selfsight.data.decoders.decode_workers import MIN_IMAGES, decode_images, start_processes
from selfsight.data.loader import Loader
from selfsight.methods import DataInfo, Method, Moment
from selfsight.nn import encoders
from selfsight.optim import build_optimizer
from selfsight.recipe import Recipe
from selfsight.runs.environment import device_name
from selfsight.runs.open_run_images import open_recipe_images, open_recipe_source, resolve_storage
from selfsight.terminal.console import fit_line
from selfsight.train.compile import compile_networks, compile_stance, is_compiled
from selfsight.train.compile_ahead import CompileAhead
from selfsight.train.cuda_graph import TIMED_STEPS, StepRunner
from selfsight.train.cuda_graph import WARMUP_STEPS as UNTIMED_STEPS
from selfsight.train.cudnn_and_determinism import configure_torch
from selfsight.train.grad_scaler import GradScaler
from selfsight.train.init_weights import build_method
from selfsight.train.loop import load_batches
from selfsight.train.pretrain import build_loader
from selfsight.train.skipped_steps import step_if_finite
from selfsight.train.step import autocast, compute_views
from selfsight.train.training_state import State
from selfsight.train.trial_steps import build_trial_state

MUCH = 0.05  # of the limit: from here on, a brief measurement has the loss alone too
IMAGES_PER_WORKER = 128  # images decoded per worker to measure the speed of decoding
# After these, the step runner has chosen plain steps or a CUDA graph.
WARMUP_STEPS = UNTIMED_STEPS + 4 + 2 * TIMED_STEPS


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Time of one component of a step, and the speed if a step had no other."""

    name: str
    ms: float
    images_per_second: float


@dataclass(frozen=True, kw_only=True)
class Breakdown:
    """Timings of a recipe; `fraction_of_limit` compares training with its bare backbone."""

    recipe: str
    device: str
    batch_size: int
    timings: tuple[Timing, ...]
    images_per_second: float
    limit: float  # images per second of the bare backbone
    fraction_of_limit: float
    data_wait: float  # fraction of the time spent waiting for a batch
    first_step: float  # seconds to the end of the first step, including compilation
    step_mode: str  # "plain" or "graph" (CUDA graph)
    memory: int | None  # peak bytes on the GPU
    storage: str  # cache or stream
    decoder: str
    overhead: dict[str, float]  # ms of a step beyond the limit, by cause


def measure_breakdown(
    name: str,
    recipe: Recipe,
    device: torch.device,
    *,
    seconds: float = 2.0,
    console: Console,
    brief: bool = False,
    times: PassTimes | None = None,
    source: Source | None = None,
) -> Breakdown:
    """Measure a recipe whose `data.path` names the images, and print each timing.

    `brief` skips decoding, and the loss alone if heads and loss take little. `times` holds passes
    that were measured before with the same backbone; new ones are added. A given `source` is not
    opened again.
    """
    configure_torch(recipe, device)
    source = open_recipe_source(recipe) if source is None else source
    recipe, _ = resolve_storage(recipe, source, device)
    n, timings = recipe.batch_size, dict[str, float]()

    images = open_recipe_images(recipe, device, None, source)
    components = _StepComponents(recipe, images, device)
    passes = components.passes()
    forward_only = Counter[BackbonePass]()
    if not brief and all(
        one.backward for one in passes
    ):  # no teacher: measure the forward passes by themselves
        forward_only.update({one._replace(backward=False): count for one, count in passes.items()})
    ms_of = time_passes(recipe, passes | forward_only, device, seconds, times)

    def total_ms(counts: Counter[BackbonePass]) -> float:
        return sum(ms_of[one] * count for one, count in counts.items())

    limit = total_ms(passes)

    def add(label: str, ms: float) -> None:
        timings[label] = ms
        cells = (
            f"{ms:10.2f} ms",
            f"{1000 * n / ms:11,.0f} images/s",
            f"{limit / ms:8.0%} of limit",
        )
        console.print(*fit_line(f"{label:<29}", cells, console.width), sep="\n", soft_wrap=True)

    if forward_only:
        add("network, forward only", total_ms(forward_only))
    for backward, label in ((False, "forward"), (True, "forward and backward")):
        subset = Counter({p: count for p, count in passes.items() if p.backward == backward})
        if subset:
            add(f"network, {label}", total_ms(subset))
    add("network alone (the limit)", limit)
    if not brief:
        add("decode", _decode_ms(source, recipe))
    add("augment", median_ms(components.augment, device, seconds=seconds))
    add("heads and loss", median_ms(components.heads(), device, seconds=seconds))
    if not brief or timings["heads and loss"] > MUCH * limit:
        add("loss alone", median_ms(components.loss(), device, seconds=seconds))
    add("optimizer and teacher", median_ms(components.update, device, seconds=seconds))
    del components
    reset_peak_memory(device)  # the components' memory is not that of training
    training = time_training(recipe, images, device, seconds)
    add("end to end", training.ms)
    known = ("augment", "heads and loss", "optimizer and teacher")
    overhead = {label: timings[label] for label in known} | {"waiting for data": training.wait_ms}
    overhead["batch norm, gaps and all else"] = training.ms - limit - sum(overhead.values())
    return Breakdown(
        recipe=name,
        device=device_name(device),
        batch_size=n,
        timings=tuple(
            Timing(name=k, ms=v, images_per_second=1000 * n / v) for k, v in timings.items()
        ),
        images_per_second=1000 * n / training.ms,
        limit=1000 * n / limit,
        fraction_of_limit=limit / training.ms,
        data_wait=training.wait_ms / training.ms,
        first_step=training.first_step,
        step_mode=training.step_mode,
        memory=peak_memory(device),
        storage=recipe.data.storage,
        decoder=recipe.data.decoder,
        overhead=overhead,
    )


def describe(result: Breakdown) -> tuple[str, str]:
    """Summarize a breakdown in two sentences."""
    overhead = ", ".join(f"{name} {ms:.2f} ms" for name, ms in result.overhead.items())
    storage = "cached" if result.storage == "cache" else f"streamed, decoder {result.decoder}"
    step = 1000 * result.batch_size
    return (
        f"End to end {result.images_per_second:,.0f} images/s, {result.fraction_of_limit:.0%} of "
        f"the {result.limit:,.0f} that the network alone allows ({result.step_mode}, first step "
        f"after {result.first_step:.0f} s, images {storage}, waiting for data "
        f"{result.data_wait:.1%}).",
        f"A step takes {step / result.images_per_second:.2f} ms, the network alone "
        f"{step / result.limit:.2f} ms; the rest: {overhead}.",
    )


class _StepComponents:
    """A method with one batch, whose components can be timed one by one."""

    def __init__(self, recipe: Recipe, images: ImageStore, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self.data = DataInfo(len(images), len(images.class_names))
        self.method = build_method(recipe, device, self.data)
        self.optimizer = build_optimizer(
            recipe.optim, self.method.named_parameters(), batch_size=recipe.batch_size
        )
        self.scaler = GradScaler(device, enabled=False)
        self.raw = next(build_loader(recipe, images, device).batches(0))
        self.views = compute_views(recipe, self.raw.images, self.raw.index, 0)
        self.at = Moment(
            step=torch.tensor(0, device=device),
            index=self.raw.index,
            seed=0,
            total_steps=1000,
            steps_per_epoch=100,
            labels=self.raw.labels if recipe.method.needs_labels else None,
        )
        with torch.no_grad(), self._uncompiled():  # the tensors that the method updates
            self.result = copy.deepcopy(self.method)(self.views, self.at)
        for p in self.method.parameters():
            p.grad = torch.randn_like(p) if p.requires_grad else None

    def augment(self) -> list[Tensor]:
        """Compute all views of the batch."""
        return compute_views(self.recipe, self.raw.images, self.raw.index, 0)

    def passes(self) -> Counter[BackbonePass]:
        """Count the backbone passes of a step."""
        method = build_method(self.recipe, self.device, self.data)
        with self._uncompiled():
            return count_passes(method, self.views, self.at)

    def heads(self) -> Any:
        """Build a step of projector, predictor, queue and loss on nearly free features."""
        return self._with_free_backbone(
            copy.deepcopy(self.method), self.method.student.backbone.dim
        )

    def loss(self) -> Any:
        """Build a step of queue and loss on nearly free embeddings."""
        with torch.no_grad():
            one = self.views[0][:1].float()
            dim = copy.deepcopy(self.method.student).eval()(one)[1].shape[1]
        method: Any = copy.deepcopy(self.method)
        for encoder in encoders(method):
            encoder.projector = _NoHead()
        if getattr(method, "predictor", None) is not None:
            method.predictor = nn.Identity()
        return self._with_free_backbone(method, dim)

    def _with_free_backbone(self, method: Method, dim: int) -> Any:
        """Build a step of the method, forward and backward, with nearly free features."""
        free = _MeanColorBackbone(self.recipe.data.channels, dim).to(self.device)
        for encoder in encoders(method):
            encoder.backbone = copy.deepcopy(free)  # type: ignore[assignment]
        if is_compiled(self.recipe, self.device):
            compile_networks(method)

        def run_step() -> None:
            with autocast(self.recipe, self.device), compile_stance(self.recipe, self.device):
                step = method(self.views, self.at)
            method.zero_grad(set_to_none=True)
            step.loss.backward()

        return run_step

    def update(self) -> None:
        """Check gradients, step the optimizer, update the teacher."""
        grads = [p.grad for p in self.method.parameters() if p.grad is not None]
        found_inf = self.scaler.unscale(grads, self.at.step_on(self.device))
        step_if_finite(self.optimizer, found_inf)
        self.method.after_step(self.at, self.result._replace(skipped=found_inf))

    @contextlib.contextmanager
    def _uncompiled(self) -> Iterator[None]:
        """Run a forward pass whose speed does not matter, without compiling its losses."""
        with autocast(self.recipe, self.device), torch.compiler.set_stance("force_eager"):
            yield


class _NoHead(nn.Module):
    """Stand-in for a projector, whatever else it is given."""

    def forward(self, h: Tensor, **_: Any) -> Tensor:
        return h


class _MeanColorBackbone(nn.Module):
    """Stand-in for a backbone that computes features from the mean color of an image."""

    def __init__(self, channels: int, dim: int) -> None:
        super().__init__()
        self.dim, self.out = dim, nn.Linear(channels, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x.float().mean(dim=(2, 3)))


def _decode_ms(source: Source, recipe: Recipe) -> float:
    """Return the milliseconds to decode one batch with the recipe's decoder."""
    data = recipe.data
    count = min(max(MIN_IMAGES, IMAGES_PER_WORKER * available_cpus()), len(source))
    processes = None
    if data.decoder == "cpu" and (processes := start_processes(source, count, available_cpus())):
        processes.wait()
    began = time.perf_counter()
    for _ in decode_images(
        source,
        range(count),
        store_size=data.store_size,
        channels=data.channels,
        decoder=data.decoder,
        processes=processes,
    ):
        pass
    seconds = time.perf_counter() - began
    if processes is not None:
        processes.close()
    return 1000 * seconds * recipe.batch_size / count


class TrainingSpeed(NamedTuple):
    """Speed of the training loop."""

    ms: float  # per step
    wait_ms: float  # per step, for data
    first_step: float  # seconds
    full_speed: float  # seconds until the choice between plain steps and a CUDA graph
    step_mode: str  # "plain" or "graph"
    compiled: str = ""  # what was compiled meanwhile, in words


def time_training(
    recipe: Recipe,
    images: ImageStore,
    device: torch.device,
    seconds: float,
    *,
    compile_ahead: bool = False,
) -> TrainingSpeed:
    """Time real batches in the training loop, once it has chosen plain steps or a CUDA graph.

    With `compile_ahead`, as in `selfsight pretrain`, it begins uncompiled if the cache is empty.
    """
    recipe = replace(recipe, epochs=10**6)
    data = DataInfo(len(images), len(images.class_names))
    state = build_trial_state(recipe, device, data)
    loader = build_loader(recipe, images, device)
    ahead = CompileAhead(recipe, data, device) if compile_ahead else None
    try:
        return _time_steps(state, loader, recipe, device, seconds, ahead)
    finally:
        if ahead is not None:
            ahead.close()


def _time_steps(
    state: State,
    loader: Loader,
    recipe: Recipe,
    device: torch.device,
    seconds: float,
    ahead: CompileAhead | None,
) -> TrainingSpeed:
    batches = load_batches(loader, recipe, 0)
    began = time.perf_counter()
    run_step = StepRunner(
        state, recipe, steps_per_epoch=loader.steps_per_epoch, device=device, ahead=ahead
    )
    run_step(next(batches))
    synchronize(device)
    first = time.perf_counter() - began
    while run_step.ahead is not None:
        run_step(next(batches))
        synchronize(device)
    for _ in range(WARMUP_STEPS if device.type == "cuda" else 1):
        run_step(next(batches))
    synchronize(device)
    full_speed = time.perf_counter() - began
    dist.barrier()
    began, waited, count = time.perf_counter(), loader.wait_seconds, 0
    while count < 3 or not _time_is_up(count, time.perf_counter() - began, 3 * seconds, device):
        run_step(next(batches))
        count += 1
    synchronize(device)
    dist.barrier()
    ms = 1000 * (time.perf_counter() - began) / count
    wait_ms = 1000 * (loader.wait_seconds - waited) / count
    compiled = ahead.describe() if ahead is not None and ahead.step is not None else ""
    return TrainingSpeed(ms, wait_ms, first, full_speed, run_step.mode, compiled)


def _time_is_up(count: int, spent: float, seconds: float, device: torch.device) -> bool:
    """Return whether time is up; all processes must agree, or one would wait for the others."""
    if dist.world_size() > 1:
        if count & (count - 1):  # compare only after 4, 8, 16, ... steps, since it stalls a GPU
            return False
        spent = dist.mean(torch.tensor(spent, device=device)).item()
    return spent >= seconds
