"""What keeps a step without a finite gradient from doing harm, without asking the device."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

START = 2.0**16  # the loss of a run in fp16 is multiplied by this, and by less after an overflow
GROW_AFTER = 2000  # finite steps


class Guard:
    """Says whether a step's gradient is finite, counts those that are not, scales a loss in fp16.

    All of it stays on the device: the driver reads it when it writes its next record.
    """

    def __init__(self, device: torch.device, *, scaled: bool) -> None:
        self.scaled = scaled
        self.scale = torch.tensor(START if scaled else 1.0, device=device)
        self.growth = torch.zeros((), dtype=torch.int32, device=device)
        self.lost = torch.zeros((), device=device)  # 1: the last gradient was not finite
        self.streak = torch.zeros((), device=device)  # of steps that were lost, up to the last
        self.longest = torch.zeros((), device=device)  # such streak since it was last asked for
        self.total = torch.zeros((), device=device)  # steps lost since the start

    def check(self, grads: Sequence[Tensor]) -> Tensor:
        """Undo the scaling of the gradients, and say (1 or 0) whether one of them is not finite."""
        self.lost.zero_()
        inverse = self.scale.reciprocal()
        torch._amp_foreach_non_finite_check_and_unscale_(list(grads), self.lost, inverse)
        if self.scaled:
            torch._amp_update_scale_(self.scale, self.growth, self.lost, 2.0, 0.5, GROW_AFTER)
        self.streak.add_(1).mul_(self.lost)
        torch.maximum(self.longest, self.streak, out=self.longest)
        self.total.add_(self.lost)
        return self.lost

    def take_longest(self) -> int:
        """The longest streak of lost steps since this was last asked for; the host waits for it."""
        longest = int(self.longest)
        self.longest.copy_(self.streak)
        return longest

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"scale": self.scale, "growth": self.growth, "total": self.total}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go back to where `state_dict` was taken."""
        for name, value in saved.items():
            getattr(self, name).copy_(value)


def take(optimizer: torch.optim.Optimizer, lost: Float[Tensor, ""]) -> None:
    """The optimizer's step, unless it is `lost`; on a GPU it is the kernels that look."""
    if lost.device.type == "cuda":
        optimizer.found_inf = lost  # type: ignore[attr-defined]
        optimizer.step()
    elif not lost:
        optimizer.step()
