"""The precision that every loss computes in, and unit vectors in it."""

import functools
from collections.abc import Callable
from typing import ParamSpec, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

P = ParamSpec("P")


def full_precision(loss: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """The loss of its embeddings in at least float32, whatever the precision around it.

    Autocast is off inside: it would round a product of float32 unit vectors to bfloat16, which
    at temperature 0.07 moves a logit by 0.04.
    """

    @functools.wraps(loss)
    def precise(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        embeddings = cast(tuple[Tensor, ...], args)
        raised = [e.to(torch.promote_types(e.dtype, torch.float32)) for e in embeddings]
        with torch.autocast(embeddings[0].device.type, enabled=False):
            return cast(Callable[..., Tensor], loss)(*raised, **kwargs)

    return precise


def unit(x: Float[Tensor, "*rows d"]) -> Float[Tensor, "*rows d"]:
    """Rows of length one."""
    return F.normalize(x, dim=-1)
