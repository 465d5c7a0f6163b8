"""The precision that losses compute in, and unit vectors in it."""

import functools
from collections.abc import Callable
from typing import ParamSpec, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from selfsight.compile_options import COMPILE_OPTIONS, allow_many_versions

P = ParamSpec("P")


def at_least_float32(loss: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Compute a loss of embeddings in at least float32, with autocast off.

    Autocast would round a product of float32 unit vectors to bfloat16, which at temperature 0.07
    moves a logit by 0.04. On CUDA the loss is compiled: a few kernels where there were dozens.
    `torch.compiler.set_stance("force_eager")` turns that off, as it does for every compiled
    function.
    """

    def eager(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        embeddings = cast(tuple[Tensor, ...], args)
        raised = [e.to(torch.promote_types(e.dtype, torch.float32)) for e in embeddings]
        with torch.autocast(embeddings[0].device.type, enabled=False):
            return cast(Callable[..., Tensor], loss)(*raised, **kwargs)

    @functools.wraps(loss)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        if is_compiled_on(cast(Tensor, args[0]).device) and not torch.compiler.is_compiling():
            return compile_loss(eager)(*args, **kwargs)
        return eager(*args, **kwargs)

    return wrapper


def is_compiled_on(device: torch.device) -> bool:
    """Whether losses are compiled on this device; on a CPU that takes longer than it saves."""
    return device.type == "cuda"


@functools.cache  # importing the compiler takes seconds
def compile_loss(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Compile a loss as one graph, when it is called for the first time."""
    allow_many_versions()
    return torch.compile(loss, fullgraph=True, **COMPILE_OPTIONS)


def unit(x: Float[Tensor, "*rows d"]) -> Float[Tensor, "*rows d"]:
    """Rows scaled to length one."""
    return F.normalize(x, dim=-1)
