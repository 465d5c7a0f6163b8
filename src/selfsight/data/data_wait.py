"""How long the device waits for data: the number `data_wait` of the log."""

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

MAX_LEAD = 4  # batches that the CPU may be ahead of the GPU: hides its work, bounds memory


class WaitTimer:
    """Measures how long the device had nothing to do because its next batch was not ready.

    The CPU also waits for batches while the GPU is still busy with earlier ones. So on a GPU the
    wait is the gap between two CUDA events: the end of earlier work and the arrival of the batch.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.finished_seconds = 0.0
        self.pending: deque[tuple[Any, Any]] = deque()

    @property
    def seconds(self) -> float:
        """Seconds waited so far, without the last few batches if the GPU has not reached them."""
        while self.pending and self.pending[0][1].query():
            before, after = self.pending.popleft()
            self.finished_seconds += before.elapsed_time(after) / 1000
        return self.finished_seconds

    @contextlib.contextmanager
    def measure(self) -> Iterator[None]:
        """Measure the enclosed work: getting one batch, including its copy to the device."""
        if self.device.type != "cuda":
            began = time.perf_counter()
            yield
            self.finished_seconds += time.perf_counter() - began
            return
        if len(self.pending) >= MAX_LEAD:
            self.pending[-MAX_LEAD][1].synchronize()
        _ = self.seconds  # drop finished events
        before = self._record_event()
        yield
        self.pending.append((before, self._record_event()))

    def _record_event(self) -> Any:
        # `blocking` leaves the CPU to the workers that decode.
        event = torch.cuda.Event(enable_timing=True, blocking=True)
        event.record(torch.cuda.current_stream(self.device))
        return event
