"""Skip a step without a finite gradient; stop a run that skips too many in a row as diverged."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from selfsight.errors import DivergedError
from selfsight.train.grad_scaler import GradScaler

MAX_SKIPPED = 10  # steps in a row without a finite gradient before the run is stopped
FP16_FACTOR = 3  # times as many in fp16, which skips a step whenever its scale is too large
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # of a batch norm


def step_if_finite(optimizer: torch.optim.Optimizer, found_inf: Float[Tensor, ""]) -> None:
    """Step the optimizer unless a gradient is not finite; on a GPU its kernels check."""
    if found_inf.device.type == "cuda":
        optimizer.found_inf = found_inf  # type: ignore[attr-defined]
        optimizer.step()
    elif not found_inf:
        optimizer.step()


class StatisticsBefore:
    """Batch-norm statistics before a step, which its forward pass changes.

    They are gathered in one tensor for each dtype, so that few kernels are launched.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.groups: dict[torch.dtype, list[Tensor]] = {}
        for module in modules:
            for name, tensor in module.named_buffers():
                if name.endswith(STATISTICS):
                    self.groups.setdefault(tensor.dtype, []).append(tensor)
        self.before = {dtype: _flatten(tensors) for dtype, tensors in self.groups.items()}

    def restore_if(self, skipped: Float[Tensor, ""]) -> None:
        """Restore them where `skipped` is 1; the host does not read it."""
        for dtype, tensors in self.groups.items():
            kept = torch.where(skipped > 0, self.before[dtype], _flatten(tensors))
            parts = kept.split([t.numel() for t in tensors])
            shaped = [part.view(t.shape) for part, t in zip(parts, tensors, strict=True)]
            torch._foreach_copy_(tensors, shaped)


def _flatten(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def check_divergence(record: Mapping[str, Any], scaler: GradScaler, *, finished: bool) -> bool:
    """Return whether a log record is finite, or raise a DivergedError; waits for the device.

    False: the step was skipped, but not too many in a row, so the run continues.
    """
    not_finite = [k for k, v in record.items() if isinstance(v, float) and not math.isfinite(v)]
    longest = scaler.read_longest_run()
    too_many = longest >= MAX_SKIPPED * (FP16_FACTOR if scaler.enabled else 1)
    if not too_many and not not_finite:
        return True
    if int(scaler.skipped_in_a_row) > 0 and not too_many and not finished:
        return False
    reasons = [f"these are no longer finite: {', '.join(not_finite)}"] if not_finite else []
    if longest:
        reasons.append(f"{longest} steps in a row had no finite gradient and were skipped")
    raise DivergedError(
        f"By step {record['step']} {'; '.join(reasons)}. Lower --optim.lr, or lengthen "
        "--optim.schedule.warmup-epochs."
    )
