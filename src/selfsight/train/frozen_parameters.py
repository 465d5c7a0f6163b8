"""Leave parameters that a method freezes, and their optimizer state, as they are."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor, nn


class Frozen(NamedTuple):
    """A parameter and its optimizer state before a step, and whether it is frozen in it."""

    parameter: nn.Parameter
    where: Bool[Tensor, ""]
    before: dict[str, Tensor]


def copy_frozen(
    method: nn.Module, optimizer: torch.optim.Optimizer, frozen: Mapping[str, Bool[Tensor, ""]]
) -> list[Frozen]:
    """Copy the parameters that a step names as frozen, with their optimizer state."""
    copies = []
    for name, where in frozen.items():
        parameter = method.get_parameter(name)
        state = {"": parameter.detach()} | optimizer.state[parameter]
        before = {key: value.clone() for key, value in state.items() if torch.is_tensor(value)}
        copies.append(Frozen(parameter, where, before))
    return copies


@torch.no_grad()
def restore_frozen(optimizer: torch.optim.Optimizer, copies: list[Frozen]) -> None:
    """Undo the optimizer's step on them, as if they had no gradient; the host reads nothing.

    A gradient of zero is not enough: weight decay and momentum would move them, and AdamW counts
    the step, which makes its first updates after the thaw up to six times too large.
    """
    for parameter, where, before in copies:
        state = {"": parameter} | optimizer.state[parameter]
        for key, value in state.items():
            if torch.is_tensor(value):
                # State that the step has created begins at zero.
                old = before[key] if key in before else torch.zeros_like(value)
                value.copy_(torch.where(where.to(value.device), old, value))
