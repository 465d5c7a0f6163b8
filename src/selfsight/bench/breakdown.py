"""The parts of a training step, each timed alone, and the whole with real batches from the disk."""

import copy
import gc
import time
from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from selfsight import dist
from selfsight.bench.network_limit import Pass, alone, passes
from selfsight.bench.timer import timed
from selfsight.data import Source
from selfsight.data.decode_in_order import decoded_in_order
from selfsight.data.decode_threads import num_workers
from selfsight.data.image_store import Images
from selfsight.data.workers import MANY, decoders_for
from selfsight.losses import compiled_losses
from selfsight.methods import DataFacts, Method, Moment
from selfsight.nn import encoders
from selfsight.optim import build_optimizer
from selfsight.recipe import Recipe
from selfsight.runs.start_resume import open_recipe_images, open_recipe_source, resolve_storage
from selfsight.train.compile import compile_networks
from selfsight.train.grad_scaler import Guard, take
from selfsight.train.loop import State, feed
from selfsight.train.pretrain import build, loader_of
from selfsight.train.step import DTYPES, TRIAL, WARM, Stepper, compiles, make, settle

DECODED = 128  # images that each thread decodes to find the rate
SETTLED = WARM + 4 + 2 * TRIAL  # steps after which the way of stepping is chosen


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of a step: what it takes, and what training would do if it were all there is."""

    name: str
    ms: float
    images_per_second: float


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What was measured; `share` is end to end over the limit of the network alone."""

    recipe: str
    device: str
    batch_size: int
    parts: tuple[Part, ...]
    images_per_second: float
    limit: float
    share: float
    waiting: float  # share of the time in which a batch was not ready
    first_step: float  # seconds until the first step was done, compiling included
    way: str  # how the steps were taken: plain or graph
    memory: int | None  # bytes, the most that were in use at once
    keep: str  # how the images lay: pixels or stream
    decoder: str
    rest: tuple[tuple[str, float], ...]  # where the time between the limit and the whole goes, ms

    def to_dict(self) -> dict[str, Any]:
        """Plain values that JSON can hold."""
        return asdict(self) | {"rest": dict(self.rest)}


def bench(
    name: str, recipe: Recipe, device: torch.device, *, seconds: float = 2.0, console: Console
) -> Figures:
    """Measure a recipe whose `data.path` names the images."""
    settle(recipe, device)
    source = open_recipe_source(recipe)
    recipe, _ = resolve_storage(recipe, source, device)
    n, found = recipe.batch_size, dict[str, float]()

    images = open_recipe_images(recipe, device, None, source)
    bed = _Bed(recipe, images, device)
    kinds = bed.passes()
    halves = Counter[Pass]()
    if all(kind.trained for kind in kinds):  # no teacher: forward is the half of what is trained
        halves.update({kind._replace(trained=False): times for kind, times in kinds.items()})
    each = alone(recipe, kinds | halves, device, seconds)
    limit = sum(each[kind] * times for kind, times in kinds.items())

    def part(label: str, ms: float) -> None:
        found[label] = ms
        rate = f"{1000 * n / ms:11,.0f} images/s{limit / ms:8.0%} of limit"
        console.print(f"{label:<29}{ms:10.2f} ms{rate}", highlight=False, soft_wrap=True)

    if halves:
        part("network, forward only", sum(each[kind] * times for kind, times in halves.items()))
    for trained, label in ((False, "forward"), (True, "forward and backward")):
        own = [each[kind] * times for kind, times in kinds.items() if kind.trained == trained]
        if own:
            part(f"network, {label}", sum(own))
    part("network alone (the limit)", limit)
    part("decode", _decode(source, recipe))
    part("augment", timed(bed.augment, device, seconds=seconds))
    part("heads and loss", timed(bed.heads(), device, seconds=seconds))
    part("loss alone", timed(bed.loss(), device, seconds=seconds))
    part("optimizer and teacher", timed(bed.move, device, seconds=seconds))
    del bed
    gc.collect()
    if device.type == "cuda":  # what the parts took is not training's
        torch.cuda.reset_peak_memory_stats(device)
    whole = end_to_end(recipe, images, device, seconds)
    part("end to end", whole["ms"])
    known = ("augment", "heads and loss", "optimizer and teacher")
    rest = {label: found[label] for label in known} | {"waiting for data": whole["waited"]}
    rest["batch norm, gaps and all else"] = whole["ms"] - limit - sum(rest.values())
    return Figures(
        recipe=name,
        device=_name(device),
        batch_size=n,
        parts=tuple(Part(name=k, ms=v, images_per_second=1000 * n / v) for k, v in found.items()),
        images_per_second=1000 * n / whole["ms"],
        limit=1000 * n / limit,
        share=limit / whole["ms"],
        waiting=whole["waited"] / whole["ms"],
        first_step=whole["first"],
        way=whole["way"],
        memory=torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
        keep=recipe.data.keep,
        decoder=recipe.data.decoder,
        rest=tuple(rest.items()),
    )


def words(figures: Figures) -> str:
    """The figures in a few sentences."""
    rest = ", ".join(f"{name} {ms:.2f} ms" for name, ms in figures.rest)
    step = 1000 * figures.batch_size
    return (
        f"End to end {figures.images_per_second:,.0f} images/s, {figures.share:.0%} of the "
        f"{figures.limit:,.0f} that the network alone allows ({figures.way}, first step after "
        f"{figures.first_step:.0f} s, {_kept(figures)}, waiting for data {figures.waiting:.1%}).\n"
        f"A step takes {step / figures.images_per_second:.2f} ms, the network alone "
        f"{step / figures.limit:.2f} ms; the rest: {rest}."
    )


def _kept(figures: Figures) -> str:
    """How the images came to the network."""
    if figures.keep == "pixels":
        return "images kept as pixels"
    return f"images streamed and decoded by {figures.decoder}"


class _Bed:
    """A method with one batch, on which parts can be timed alone."""

    def __init__(self, recipe: Recipe, images: Images, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self.data = DataFacts(len(images), len(images.class_names))
        self.method = build(recipe, device, self.data)
        self.optimizer = build_optimizer(
            recipe.optim, self.method.named_parameters(), batch_size=recipe.batch_size
        )
        self.guard = Guard(device, scaled=False)
        self.raw = next(loader_of(recipe, images, device).batches(0))
        self.views = make(recipe, self.raw.images, self.raw.index, 0)
        self.at = Moment(
            step=torch.tensor(0, device=device),
            index=self.raw.index,
            seed=0,
            total_steps=1000,
            steps_per_epoch=100,
            labels=self.raw.labels if recipe.method.needs_labels else None,
        )
        for p in self.method.parameters():
            p.grad = torch.randn_like(p) if p.requires_grad else None

    def augment(self) -> list[Tensor]:
        """All views of the batch."""
        return make(self.recipe, self.raw.images, self.raw.index, 0)

    def passes(self) -> Counter[Pass]:
        """How a step runs the backbone."""
        method = build(self.recipe, self.device, self.data)
        with self._autocast():
            return passes(method, self.views, self.at)

    def heads(self) -> Any:
        """Projector, predictor, queue and loss, on features that cost nothing."""
        return self._on_cheap(copy.deepcopy(self.method), self.method.student.backbone.dim)

    def loss(self) -> Any:
        """Queue and loss, on embeddings that cost nothing."""
        with torch.no_grad():
            one = self.views[0][:1].float()
            dim = copy.deepcopy(self.method.student).eval()(one)[1].shape[1]
        method: Any = copy.deepcopy(self.method)
        for encoder in encoders(method):
            encoder.projector = nn.Identity()
        if getattr(method, "predictor", None) is not None:
            method.predictor = nn.Identity()
        return self._on_cheap(method, dim)

    def _on_cheap(self, method: Method, dim: int) -> Any:
        """A step of the method, forward and backward, with features of this width for nothing."""
        cheap = _Cheap(self.recipe.data.channels, dim).to(self.device)
        for encoder in encoders(method):
            encoder.backbone = copy.deepcopy(cheap)  # type: ignore[assignment]
        if compiles(self.recipe, self.device):
            compile_networks(method)

        def work() -> None:
            with self._autocast(), compiled_losses(compiles(self.recipe, self.device)):
                step = method(self.views, self.at)
            method.zero_grad(set_to_none=True)
            step.loss.backward()

        return work

    def move(self) -> None:
        """What follows the backward pass."""
        grads = [p.grad for p in self.method.parameters() if p.grad is not None]
        lost = self.guard.check(grads)
        take(self.optimizer, lost)
        self.method.after_step(self.at)

    def _autocast(self) -> Any:
        kind = DTYPES[self.recipe.precision]
        return torch.autocast(self.device.type, kind, enabled=kind != torch.float32)


class _Cheap(nn.Module):
    """In place of a backbone: features from the mean colors alone."""

    def __init__(self, channels: int, dim: int) -> None:
        super().__init__()
        self.dim, self.out = dim, nn.Linear(channels, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x.float().mean(dim=(2, 3)))


def _decode(source: Source, recipe: Recipe) -> float:
    """Milliseconds to decode one batch with the decoder of the plan."""
    data, count = recipe.data, min(max(MANY, DECODED * num_workers()), len(source))
    if data.decoder == "cpu" and (processes := decoders_for(source, count, num_workers())):
        processes.wait()
    settings = dict(store_size=data.store_size, channels=data.channels, decoder=data.decoder)
    began = time.perf_counter()
    for _ in decoded_in_order(source, range(count), **settings):  # type: ignore[arg-type]
        pass
    return 1000 * (time.perf_counter() - began) * recipe.batch_size / count


def end_to_end(
    recipe: Recipe, images: Images, device: torch.device, seconds: float
) -> dict[str, Any]:
    """Real batches through the training loop, once its way of stepping is chosen."""
    recipe = replace(recipe, epochs=10**6)
    method = build(recipe, device, DataFacts(len(images), len(images.class_names)))
    optimizer = build_optimizer(
        recipe.optim, method.named_parameters(), batch_size=recipe.batch_size
    )
    state = State(method, optimizer, Guard(device, scaled=recipe.precision == "fp16"))
    loader = loader_of(recipe, images, device)
    batches = feed(loader, recipe, 0)
    began = time.perf_counter()
    take_step = Stepper(state, recipe, steps_per_epoch=loader.steps_per_epoch, device=device)
    take_step(next(batches))
    _wait(device)
    first = time.perf_counter() - began
    for _ in range(SETTLED if device.type == "cuda" else 1):
        take_step(next(batches))
    _wait(device)
    dist.barrier()
    began, waited, count = time.perf_counter(), loader.waited, 0
    while count < 3 or not _enough(count, time.perf_counter() - began, 3 * seconds, device):
        take_step(next(batches))
        count += 1
    _wait(device)
    dist.barrier()
    ms = 1000 * (time.perf_counter() - began) / count
    waited = 1000 * (loader.waited - waited) / count
    return {"ms": ms, "waited": waited, "first": first, "way": take_step.way}


def _enough(count: int, spent: float, seconds: float, device: torch.device) -> bool:
    """Whether the time is up; processes agree on it, or one would wait in a step for the others."""
    if dist.world_size() > 1:
        if count & (count - 1):  # asking holds up a GPU: only after 4, 8, 16 ... steps
            return False
        spent = dist.mean(torch.tensor(spent, device=device)).item()
    return spent >= seconds


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
