"""Run steps, on one GPU as a recorded CUDA graph if that measures faster.

Small networks are bound by the time it takes to launch their kernels.
"""

import contextlib
import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from selfsight import dist
from selfsight.methods import Step
from selfsight.optim import set_lr
from selfsight.recipe import Recipe
from selfsight.record_graph import WARMUP_CALLS, on_stream, record_graph, recording_stream
from selfsight.train.compile import compile_networks, is_compiled
from selfsight.train.compile_ahead import CompileAhead
from selfsight.train.ddp import distribute
from selfsight.train.step import Batch, optimizer_step
from selfsight.train.training_state import State

WARMUP_STEPS = WARMUP_CALLS  # before anything is timed or recorded
TIMED_STEPS = 5  # in each mode
RECORDING = WARMUP_STEPS + 1 + TIMED_STEPS  # the step that is recorded
CHOICE = RECORDING + 2 + TIMED_STEPS  # the step before which the faster mode is chosen


def can_record(recipe: Recipe, device: torch.device) -> bool:
    """Whether steps can be a CUDA graph: on one GPU, and without chunks or recomputed blocks.

    The backward pass of chunks and recomputed blocks runs code that a graph cannot hold.
    """
    recomputes = recipe.chunk is not None or recipe.activation_checkpointing
    return device.type == "cuda" and dist.world_size() == 1 and not recomputes


class StepRunner:
    """Runs the steps of one training; `mode` is "plain", or "graph" once that proved faster.

    With `ahead`, if code is not in the compile cache yet, steps run uncompiled until it is.
    """

    def __init__(
        self,
        state: State,
        recipe: Recipe,
        *,
        steps_per_epoch: int,
        device: torch.device,
        record: bool = True,
        ahead: CompileAhead | None = None,
    ) -> None:
        self.state, self.recipe = state, recipe
        self.steps_per_epoch, self.device = steps_per_epoch, device
        self.ahead = ahead if ahead is not None and ahead.is_needed() else None
        if self.ahead is not None:
            self.ahead.start()
            self.recipe = replace(recipe, compile=False)
        elif is_compiled(recipe, device):
            compile_networks(state.method, blocks=recipe.compile_blocks)
        self.step = torch.tensor(state.step, device=device)
        self.forward = distribute(state.method, device)
        recorded = record and can_record(recipe, device)
        self.stream = recording_stream(device) if recorded else None
        self.calls, self.mode = 0, "plain"
        self.milliseconds: dict[str, float] = {}  # of a step, in each mode
        self.events: list[tuple[Any, Any]] = []  # start and end of the steps that are timed
        self.replay: Callable[[Batch], Step] | None = None

    def __call__(self, batch: Batch) -> Step:
        """Run one step; its result is valid until the next."""
        if self.ahead is not None and self.calls:
            if self.calls == 1:
                self.ahead.compile()
            if not self.ahead.is_running():
                self._use_compiled(self.ahead)
        self.calls += 1
        set_lr(
            self.state.optimizer,
            self.recipe.optim,
            step=self.state.step,
            steps_per_epoch=self.steps_per_epoch,
            epochs=self.recipe.epochs,
            batch_size=self.recipe.batch_size,
        )
        with on_stream(self.stream):
            if self.stream is not None:
                self._choose_mode(batch)
            with self._timed():
                result = self._try_uncompiled(batch) if self.ahead and self.calls == 1 else None
                result = result or (self.replay(batch) if self.replay else self._run(batch))
        self.state.step += 1
        return result

    def _use_compiled(self, ahead: CompileAhead) -> None:
        """Continue with compiled code, which the cache has by now; record another graph."""
        ahead.finish(self.state.step)
        self.recipe, self.ahead = ahead.recipe, None
        self.calls, self.mode, self.replay = 0, "plain", None
        self.milliseconds.clear()
        self.events.clear()
        gc.collect()  # a recorded step refers to itself, and keeps the memory of its graph
        compile_networks(self.state.method, blocks=self.recipe.compile_blocks)

    def _try_uncompiled(self, batch: Batch) -> Step | None:
        """Run the first step, which takes more memory uncompiled; if too much, compile at once."""
        try:
            return self._run(batch)
        except torch.OutOfMemoryError:
            pass  # the step itself is repeated outside of this handler, which keeps its tensors
        assert self.ahead is not None
        self.state.optimizer.zero_grad(set_to_none=True)
        self._use_compiled(self.ahead)
        self.calls = 1
        torch.cuda.empty_cache()
        return None

    def _run(self, batch: Batch) -> Step:
        """Run one step and advance the counter on the device."""
        result = optimizer_step(
            self.state,
            self.forward,
            batch,
            self.recipe,
            step=self.step.clone(),
            steps_per_epoch=self.steps_per_epoch,
        )
        self.step += 1
        return result

    def _choose_mode(self, batch: Batch) -> None:
        """Time plain steps, record the graph, time it, and choose the faster."""
        if self.calls == RECORDING:
            self.milliseconds["plain"] = self._read_timing()
            self.replay = self._record(batch)
            self.mode = "graph" if self.replay else "plain"
        elif self.calls == CHOICE and self.replay:
            self.milliseconds["graph"] = self._read_timing()
            if self.milliseconds["graph"] > self.milliseconds["plain"]:
                self.mode, self.replay = "plain", None

    def _record(self, batch: Batch) -> Callable[[Batch], Step] | None:
        """Record one step as a graph."""

        def run(*tensors: Tensor) -> Step:
            return self._run(batch.with_tensors(list(tensors)))

        assert self.stream is not None
        self.state.optimizer.zero_grad(set_to_none=True)
        replay = record_graph(run, batch.tensors(), self.stream)
        return replay and (lambda batch: replay(*batch.tensors()))

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        """Time this step if it is among those compared. The wait for its batch is not included."""
        # The first two replays are not timed: they upload the graph.
        starts = (WARMUP_STEPS + 1, WARMUP_STEPS + 3 + TIMED_STEPS)
        if self.stream is None or not any(0 <= self.calls - s < TIMED_STEPS for s in starts):
            yield
            return
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        yield
        end.record()
        self.events.append((start, end))

    def _read_timing(self) -> float:
        """Return milliseconds per timed step. The host waits for the device, twice in a run."""
        self.events[-1][1].synchronize()
        total = sum(start.elapsed_time(end) for start, end in self.events)
        self.events.clear()
        return total / TIMED_STEPS
