"""The precision that every loss computes in, unit vectors in it, and whether it is compiled."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import ParamSpec, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from selfsight.compile_options import COMPILE_OPTIONS

P = ParamSpec("P")
_compiled = ContextVar("compiled", default=False)


@contextlib.contextmanager
def compiled_losses(wanted: bool = True) -> Iterator[None]:
    """Losses within are compiled, each by itself: a few kernels where there were dozens."""
    before = _compiled.set(wanted)
    try:
        yield
    finally:
        _compiled.reset(before)


def full_precision(loss: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """The loss of its embeddings in at least float32, whatever the precision around it.

    Autocast is off inside: it would round a product of float32 unit vectors to bfloat16, which
    at temperature 0.07 moves a logit by 0.04.
    """

    def plain(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        embeddings = cast(tuple[Tensor, ...], args)
        raised = [e.to(torch.promote_types(e.dtype, torch.float32)) for e in embeddings]
        with torch.autocast(embeddings[0].device.type, enabled=False):
            return cast(Callable[..., Tensor], loss)(*raised, **kwargs)

    @functools.cache
    def fast() -> Callable[P, Tensor]:
        return torch.compile(plain, fullgraph=True, **COMPILE_OPTIONS)

    @functools.wraps(loss)
    def precise(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        if not torch.compiler.is_compiling() and _compiled.get():
            return fast()(*args, **kwargs)
        return plain(*args, **kwargs)

    return precise


def unit(x: Float[Tensor, "*rows d"]) -> Float[Tensor, "*rows d"]:
    """Rows of length one."""
    return F.normalize(x, dim=-1)
