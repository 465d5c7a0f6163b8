"""Collectives of the process group; with one process they return their input.

Gradients follow one rule: the loss of a process is the mean over its images, the loss of the run is
the mean over processes, and averaging gradients over processes (as DDP does) gives its gradient.
"""

import os
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from jaxtyping import Int64, Shaped
from torch import Tensor, nn

from selfsight.dist.rendezvous import read_integer
from selfsight.errors import RunError, UserError

Result = TypeVar("Result")


def rank() -> int:
    """Return the index of this process; 0 outside a process group."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """Return the number of processes; 1 outside a process group."""
    return dist.get_world_size() if dist.is_initialized() else 1


def local_rank() -> int:
    """Return the index of this process on its machine, as set by torchrun; 0 without it."""
    return read_integer("LOCAL_RANK", 0) if "LOCAL_RANK" in os.environ else 0


def prints() -> bool:
    """Return whether this process prints: the first of a machine, or of all without torchrun."""
    return os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0")) == "0"


def leads() -> bool:
    """Return whether this process is the first of all, also after they have left their group."""
    return os.environ.get("RANK", "0") == "0"


def barrier() -> None:
    """Wait for every process."""
    if world_size() > 1:
        dist.barrier()


def on_first(function: Callable[[], Result]) -> Result:
    """Call a function on the first process; all return its result, or raise its error."""
    if world_size() == 1:
        return function()
    answer: list[Any] = [None, None]
    if rank() == 0:
        try:
            answer[0] = function()
        except (UserError, RunError) as error:
            answer[1] = error
    dist.broadcast_object_list(answer, src=0)
    if answer[1] is not None:
        raise answer[1]
    return answer[0]


def gather_objects(value: Any) -> list[Any]:
    """Return the value of each process, in rank order; values are pickled."""
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value)
    return values


def start_max(x: Tensor, group: dist.ProcessGroup | None) -> Callable[[], Tensor]:
    """Start to take the maximum over processes; the returned function waits for it."""
    work = dist.all_reduce(x, op=dist.ReduceOp.MAX, group=group, async_op=True)
    assert work is not None

    def wait() -> Tensor:
        work.wait()
        return x

    return wait


def gather(x: Shaped[Tensor, "n *rest"]) -> Shaped[Tensor, "g *rest"]:
    """Concatenate the rows of all processes in rank order; gradients flow back to each."""
    return x if world_size() == 1 else _Gather.apply(x)


def all_sum(x: Shaped[Tensor, "*shape"]) -> Shaped[Tensor, "*shape"]:
    """Sum over processes; gradients are summed over processes too."""
    if world_size() == 1:
        return x
    return _AllSum.apply(x) if x.requires_grad else _sum(x)


def mean(x: Shaped[Tensor, "*shape"]) -> Shaped[Tensor, "*shape"]:
    """Average over processes; gradients are averaged over processes too."""
    return x if world_size() == 1 else all_sum(x) / world_size()


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Average gradients over processes in one all-reduce; all must have the same ones."""
    grads = [p.grad for p in parameters if p.grad is not None]
    if world_size() == 1 or not grads:
        return
    flat = mean(torch.cat([grad.flatten() for grad in grads]))
    for grad, part in zip(grads, flat.split([g.numel() for g in grads]), strict=True):
        grad.copy_(part.view_as(grad))


def local_rows(rows: Shaped[Tensor, "g *rest"]) -> Shaped[Tensor, "n *rest"]:
    """Return this process's chunk of rows that every process holds."""
    return rows.chunk(world_size())[rank()]


def shard(index: Int64[Tensor, " n"]) -> Int64[Tensor, " m"]:
    """Return this process's contiguous part, padded with the last element to equal length."""
    each = -(-len(index) // world_size())
    row = torch.arange(each) + rank() * each
    return index[row.clamp(max=len(index) - 1)]


def gather_shards(rows: Shaped[Tensor, "m *rest"], count: int) -> Shaped[Tensor, "n *rest"]:
    """Concatenate the rows that each process computed for its `shard`, without the padding."""
    return gather(rows)[:count]


def shard_slice(count: int, unit: int = 1) -> slice:
    """Return this process's rows of a batch, split as evenly as units of this size allow."""
    units, world = -(-count // unit), world_size()
    first, last = (units * r // world * unit for r in (rank(), rank() + 1))
    return slice(first, min(last, count))


def _sum(x: Tensor) -> Tensor:
    if torch.compiler.is_compiling():
        return collectives.wait_tensor(collectives.all_reduce(x.contiguous(), "sum", _world()))
    total = x.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total


def _world() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return collectives.wait_tensor(collectives.all_gather_tensor(x.contiguous(), 0, _world()))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return local_rows(_sum(grad)).contiguous()


class _AllSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _sum(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _sum(grad)
