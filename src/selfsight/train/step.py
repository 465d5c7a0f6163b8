"""One optimizer step, from pixels to the moved teacher, of which the host reads nothing back.

On one GPU the whole of it is recorded once as a CUDA graph and replayed, if that measures faster:
small networks are bound by the time it takes to launch their kernels.
"""

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from selfsight import dist
from selfsight.losses import compiled_losses
from selfsight.methods import Method, Moment, Step
from selfsight.optim import clip_gradients, set_lr
from selfsight.ragged import Ragged
from selfsight.recipe import Recipe
from selfsight.train.compile import compile_networks, keep_code
from selfsight.train.grad_scaler import take
from selfsight.train.state import State
from selfsight.views import apply_views

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "float32": torch.float32}
WARM = 3  # steps before anything is timed or recorded: compilers and libraries choose kernels
SMALL = 64  # pixels of a view
TRIAL = 5  # steps timed each way


class Batch(NamedTuple):
    """What one step is made from: images that lie on the device, or views of those that do not.

    `waited` is how many seconds passed before they were there.
    """

    views: list[Tensor]
    labels: Int64[Tensor, " n"] | None
    index: Int64[Tensor, " n"]  # type: ignore[assignment]  # hides tuple.index, on purpose
    waited: float = 0.0
    images: Ragged | None = None

    def tensors(self) -> list[Tensor]:
        """All that changes from step to step."""
        parts = [*self.views, self.index]
        parts += [] if self.labels is None else [self.labels]
        return parts + ([] if self.images is None else [self.images.starts, self.images.sizes])


class Stepper:
    """Takes steps with one state; `way` is "plain", or "graph" once that has proved faster."""

    def __init__(
        self, state: State, recipe: Recipe, *, steps_per_epoch: int, device: torch.device
    ) -> None:
        settle(recipe, device)
        self.state, self.recipe = state, recipe
        self.steps_per_epoch, self.device = steps_per_epoch, device
        self.step = torch.tensor(state.step, device=device)
        self.params = [p for group in state.optimizer.param_groups for p in group["params"]]
        self.forward = _wrapped(state.method, recipe, device)
        # Chunks are computed anew in the backward pass by code that a graph cannot hold.
        alone = device.type == "cuda" and dist.world_size() == 1 and recipe.chunk is None
        self.stream = torch.cuda.Stream(device) if alone else None
        self.calls, self.way = 0, "plain"
        self.times: dict[str, float] = {}  # milliseconds of a step, each way
        self.marks: list[tuple[Any, Any]] = []  # of steps on trial
        self.replay: Callable[[Batch], Step] | None = None

    def __call__(self, batch: Batch) -> Step:
        """One step; what it returns holds until the next."""
        self.calls += 1
        set_lr(
            self.state.optimizer,
            self.recipe.optim,
            step=self.state.step,
            steps_per_epoch=self.steps_per_epoch,
            epochs=self.recipe.epochs,
            batch_size=self.recipe.batch_size,
        )
        with self._aside():
            if self.stream is not None:
                self._choose(batch)
            with self._timed():
                step = self.replay(batch) if self.replay else self._advance(batch)
        self.state.step += 1
        return step

    def _advance(self, batch: Batch) -> Step:
        """Views, forward, backward, optimizer, teacher, probe."""
        recipe, kind = self.recipe, DTYPES[self.recipe.precision]
        at = Moment(
            step=self.step.clone(),
            index=batch.index,
            seed=recipe.seed,
            total_steps=recipe.epochs * self.steps_per_epoch,
            steps_per_epoch=self.steps_per_epoch,
            labels=batch.labels if recipe.method.needs_labels else None,
        )
        views = batch.views
        if batch.images is not None:
            views = make(recipe, batch.images, batch.index, at.step // self.steps_per_epoch)
        with (
            torch.autocast(self.device.type, kind, enabled=recipe.precision != "float32"),
            compiled_losses(compiles(recipe, self.device)),
        ):
            step = self.forward(views, at)
        optimizer, guard, probe = self.state.optimizer, self.state.guard, self.state.probe
        optimizer.zero_grad(set_to_none=True)
        loss = step.loss * guard.scale if guard.scaled else step.loss
        loss.backward()
        lost = guard.check([p.grad for p in self.params if p.grad is not None])
        clip_gradients(optimizer, recipe.optim.clip)
        take(optimizer, lost)
        self.state.method.after_step(at)
        logs = dict(step.logs)
        if probe is not None and batch.labels is not None:
            logs["probe"] = probe.update(step.features, batch.labels, lost)
        self.step += 1
        return Step(step.loss.detach(), step.features.detach(), logs)

    def _choose(self, batch: Batch) -> None:
        """Time the plain way, record the graph, time it, and keep the faster."""
        if self.calls == WARM + 1 + TRIAL:
            self.times["plain"] = self._read()
            self.replay = self._recorded(batch)
            self.way = "graph" if self.replay else "plain"
        elif self.calls == WARM + 3 + 2 * TRIAL and self.replay:
            self.times["graph"] = self._read()
            if self.times["graph"] > self.times["plain"]:
                self.way, self.replay = "plain", None

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        """On trial, mark where a step begins and ends; not where its batch was waited for."""
        # The first two replays are left out: they upload the graph.
        trials = (WARM + 1, WARM + 3 + TRIAL)
        if self.stream is None or not any(0 <= self.calls - first < TRIAL for first in trials):
            yield
            return
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        yield
        ended.record()
        self.marks.append((began, ended))

    def _read(self) -> float:
        """Milliseconds a step took; the host waits, twice in a run."""
        self.marks[-1][1].synchronize()
        spent = sum(began.elapsed_time(ended) for began, ended in self.marks)
        self.marks.clear()
        return spent / TRIAL

    def _recorded(self, batch: Batch) -> Callable[[Batch], Step] | None:
        """The step as a graph that reads what is copied into the tensors it was recorded with."""
        own = [x.clone() for x in batch.tensors()]
        held = _with_tensors(batch, own)
        graph = torch.cuda.CUDAGraph()
        self.state.optimizer.zero_grad(set_to_none=True)
        try:
            # Threads that read and decode the next batches may go on meanwhile.
            with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
                result = self._advance(held)
        except RuntimeError as error:
            warnings.warn(f"This step cannot be a CUDA graph: {error}", stacklevel=2)
            return None

        def replay(now: Batch) -> Step:
            torch._foreach_copy_(own, now.tensors())
            graph.replay()
            return result

        return replay

    @contextlib.contextmanager
    def _aside(self) -> Iterator[None]:
        """On a stream of its own, as recording asks for."""
        if self.stream is None:
            yield
            return
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            yield
        torch.cuda.current_stream().wait_stream(self.stream)


def compiles(recipe: Recipe, device: torch.device) -> bool:
    """Whether networks and losses are compiled: on a CPU that takes longer than it saves."""
    return recipe.compile and device.type == "cuda"


def settle(recipe: Recipe, device: torch.device) -> None:
    """Tell torch's libraries how to choose among kernels, and where to keep what they compile."""
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = not recipe.repeatable
        # Of small images all kernels are tried, not ten: some are faster, and it takes seconds.
        torch.backends.cudnn.benchmark_limit = 0 if recipe.views[0].size <= SMALL else 10
        torch.use_deterministic_algorithms(recipe.repeatable)
    if compiles(recipe, device):
        keep_code()


def make(
    recipe: Recipe, images: Ragged, index: Int64[Tensor, " n"], epoch: int | Tensor
) -> list[Tensor]:
    """The recipe's views of these images, in the precision of the network."""
    kind = DTYPES[recipe.precision]
    return apply_views(recipe.views, images, index, seed=recipe.seed, epoch=epoch, dtype=kind)


def _with_tensors(batch: Batch, own: list[Tensor]) -> Batch:
    """The same batch, in these tensors."""
    parts = iter(own)
    views = [next(parts) for _ in batch.views]
    index = next(parts)
    labels = None if batch.labels is None else next(parts)
    images = batch.images
    if images is not None:
        images = images._replace(starts=next(parts), sizes=next(parts))
    return Batch(views, labels, index, images=images)


def _wrapped(method: Method, recipe: Recipe, device: torch.device) -> nn.Module:
    """The method as it is called: compiled if the recipe says so, averaged over processes."""
    if compiles(recipe, device):
        compile_networks(method, backbones=recipe.chunk is None)
    if dist.world_size() == 1:
        return method
    ids = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(method, device_ids=ids, broadcast_buffers=False)
