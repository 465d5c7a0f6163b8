"""Work on many images, dealt out to the processes and put together again."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from selfsight import dist


def share(index: Int64[Tensor, " n"]) -> Int64[Tensor, " m"]:
    """This process's stretch of the images; the last image fills up, so that all are equal."""
    each = -(-len(index) // dist.world_size())
    row = torch.arange(each) + dist.rank() * each
    return index[row.clamp(max=len(index) - 1)]


def stretch(count: int, unit: int = 1) -> slice:
    """This process's rows of a batch, as even as whole units allow; the last unit may be cut."""
    units, world, rank = -(-count // unit), dist.world_size(), dist.rank()
    first, last = (units * r // world * unit for r in (rank, rank + 1))
    return slice(first, min(last, count))


def together(rows: Float[Tensor, "m *rest"], count: int) -> Float[Tensor, "n *rest"]:
    """The rows of all processes in the order of the images, on every process."""
    return dist.gather(rows)[:count]
