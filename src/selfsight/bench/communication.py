"""Count what a process exchanges in one step, for any number of processes, without sending it.

torch's fake process group replaces the others: it sends nothing and returns at once, so that
one process can count for a thousand. How long the exchanges take is not measured.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as td
from rich.console import Console
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from selfsight import dist
from selfsight.errors import UserError
from selfsight.methods import DataInfo
from selfsight.recipe import Recipe
from selfsight.terminal.console import fit_line
from selfsight.train.cuda_graph import StepRunner
from selfsight.train.step import Batch
from selfsight.train.trial_steps import build_trial_state

NUM_PROCESSES = (8, 64, 1000)
CPU = torch.device("cpu")
NUM_CLASSES = 10  # for a method that needs labels
STEPS_PER_EPOCH = 100
SUMS = ("all_reduce", "allreduce_")
GATHERS = ("all_gather_into_tensor", "allgather_", "_allgather_base_")
NOT_SENT = ("wait_tensor", "_wrap_tensor_autograd")


@dataclass(frozen=True, kw_only=True)
class Exchanges:
    """What one process exchanges in a step.

    The bytes of a sum are those of the summed tensor, of a gather those of all gathered rows.
    """

    processes: int
    sums: int
    sum_bytes: int
    gathers: int
    gather_bytes: int


class _Counter(TorchDispatchMode):
    """Notes the name and the bytes of each collective."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        kind = func.name().split("::")[-1].split(".")[0]
        if func.namespace in ("c10d", "_c10d_functional") and kind not in NOT_SENT:
            self.seen.append((kind, _num_bytes(result if "gather" in kind else args[0])))
        return result


def _num_bytes(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    return sum(map(_num_bytes, value)) if isinstance(value, list | tuple) else 0


def measure_exchanges(recipe: Recipe, console: Console) -> list[Exchanges]:
    """Count the exchanges of 8, 64 and 1,000 processes and print them."""
    console.print(
        f"exchanges of a step per process with {recipe.batch_size} images, counted and not sent "
        "(not measured on several GPUs):",
        highlight=False,
        soft_wrap=True,
    )
    counted = []
    for processes in NUM_PROCESSES:
        try:
            found = count_exchanges(recipe, processes)
        except UserError as error:
            console.print(str(error), highlight=False, soft_wrap=True)
            break
        counted.append(found)
        cells = (
            f"{found.sums:>8} sums of {found.sum_bytes / 1e6:,.1f} MB",
            f"{found.gathers:>6} gathers of {found.gather_bytes / 1e6:,.1f} MB",
        )
        lines = fit_line(f"{'processes':<12}{processes:>12,}", cells, console.width)
        console.print(*lines, sep="\n", highlight=False, soft_wrap=True)
    return counted


@contextlib.contextmanager
def fake_processes(count: int) -> Iterator[None]:
    """Act as the first of this many processes, whose exchanges send nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the group

    td.init_process_group("fake", store=FakeStore(), rank=0, world_size=count)
    try:
        yield
    finally:
        td.destroy_process_group()


def count_exchanges(recipe: Recipe, processes: int) -> Exchanges:
    """Count the exchanges of a step; the recipe's batch size is that of each process."""
    share, total = recipe.batch_size, recipe.batch_size * processes
    try:
        recipe = replace(recipe, batch_size=total, precision="float32", compile=False)
    except UserError as error:
        raise UserError(f"{processes} processes: not counted. {error}") from error
    with fake_processes(processes):
        run_step = _build_step(recipe, share, DataInfo(2 * total, NUM_CLASSES))
        for _ in range(2):  # meanwhile torch rearranges how gradients are grouped
            run_step()
        with _Counter() as counter:
            run_step()
    unknown = {kind for kind, _ in counter.seen} - set(SUMS) - set(GATHERS)
    assert not unknown, unknown
    return Exchanges(
        processes=processes,
        sums=sum(kind in SUMS for kind, _ in counter.seen),
        sum_bytes=sum(size for kind, size in counter.seen if kind in SUMS),
        gathers=sum(kind in GATHERS for kind, _ in counter.seen),
        gather_bytes=sum(size for kind, size in counter.seen if kind in GATHERS),
    )


def _build_step(recipe: Recipe, share: int, data: DataInfo) -> Callable[[], object]:
    """Build a step on this many random images."""
    state = build_trial_state(recipe, CPU, data)
    views = [torch.randn(share, recipe.data.channels, v.size, v.size) for v in recipe.views]
    labels = torch.arange(share) % NUM_CLASSES
    batch = Batch(views, labels, torch.arange(share))
    run_step = StepRunner(state, recipe, steps_per_epoch=STEPS_PER_EPOCH, device=CPU)
    run_step.forward.register_comm_hook(None, _sum_gradients)  # type: ignore[operator]
    return lambda: run_step(batch)


def _sum_gradients(_: None, bucket: td.GradBucket) -> torch.futures.Future[Tensor]:
    """Exchange a bucket of gradients; those of torch's C++ need a result, which is never sent."""
    done = torch.futures.Future[Tensor]()
    done.set_result(dist.all_sum(bucket.buffer()))
    return done
