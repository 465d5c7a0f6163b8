"""Scale the loss in fp16, find non-finite gradients and count skipped steps, without host syncs."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

INITIAL_SCALE = 2.0**16  # of the loss in fp16; halved after an overflow
GROWTH_INTERVAL = 2000  # finite steps after which the scale doubles


class GradScaler:
    """Finds non-finite gradients, counts the steps skipped for them, and scales an fp16 loss.

    All values stay on the device; the driver reads them when it writes a log record.
    """

    def __init__(self, device: torch.device, *, enabled: bool) -> None:
        self.enabled = enabled
        self.scale = torch.tensor(INITIAL_SCALE if enabled else 1.0, device=device)
        self.growth_tracker = torch.zeros((), dtype=torch.int32, device=device)
        self.found_inf = torch.zeros((), device=device)  # 1: the last gradient was not finite
        self.skipped_in_a_row = torch.zeros((), device=device)
        self.longest_run = torch.zeros((), device=device)  # of skipped steps since it was last read
        self.skipped_steps = torch.zeros((), device=device)  # since the start
        # Number of the first step skipped since it was last read; 0: none.
        self.first_skipped = torch.zeros((), dtype=torch.int64, device=device)

    def unscale(self, grads: Sequence[Tensor], step: Int64[Tensor, ""]) -> Float[Tensor, ""]:
        """Undo the scaling of the gradients; return 1 if one of them is not finite, else 0.

        `step` counts from 0, and the number that is remembered from 1, as in the log.
        """
        self.found_inf.zero_()
        inverse = self.scale.reciprocal()
        torch._amp_foreach_non_finite_check_and_unscale_(list(grads), self.found_inf, inverse)
        if self.enabled:
            torch._amp_update_scale_(
                self.scale, self.growth_tracker, self.found_inf, 2.0, 0.5, GROWTH_INTERVAL
            )
        self.skipped_in_a_row.add_(1).mul_(self.found_inf)
        torch.maximum(self.longest_run, self.skipped_in_a_row, out=self.longest_run)
        self.skipped_steps.add_(self.found_inf)
        is_first = (self.found_inf > 0) & (self.first_skipped == 0)
        torch.where(is_first, step + 1, self.first_skipped, out=self.first_skipped)
        return self.found_inf

    def read_longest_run(self) -> int:
        """Return the longest run of skipped steps since the last call; waits for the device."""
        longest = int(self.longest_run)
        self.longest_run.copy_(self.skipped_in_a_row)
        return longest

    def read_first_skipped(self) -> int:
        """Return the first step skipped since the last call, or 0; waits for the device."""
        first = int(self.first_skipped)
        self.first_skipped.zero_()
        return first

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint holds."""
        return {
            "enabled": self.enabled,
            "scale": self.scale,
            "growth_tracker": self.growth_tracker,
            "skipped_steps": self.skipped_steps,
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; the scale only if that run scaled its loss as well.

        A run may continue on another device, in another precision.
        """
        self.skipped_steps.copy_(saved["skipped_steps"])
        # Older checkpoints do not say so; without scaling it is always 1.
        if saved.get("enabled", float(saved["scale"]) != 1) == self.enabled:
            self.scale.copy_(saved["scale"])
            self.growth_tracker.copy_(saved["growth_tracker"])
