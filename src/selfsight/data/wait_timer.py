"""How long a device had nothing to do because its next batch was not there."""

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

LEAD = 4  # batches that the host may be ahead of a GPU: enough to hide its own work, no memory more


class Waits:
    """Seconds of waiting, by the clock of the device that waits.

    A host that is ahead of its GPU waits for batches too, while the GPU is still busy with the last
    ones; what counts is the gap between the end of those and the moment the next can begin.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.counted = 0.0
        self.open: deque[tuple[Any, Any]] = deque()

    @property
    def seconds(self) -> float:
        """All that is known by now: the last few batches may still be under way."""
        while self.open and self.open[0][1].query():
            asked, had = self.open.popleft()
            self.counted += asked.elapsed_time(had) / 1000
        return self.counted

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Round the work of getting one batch, its copy to the device included."""
        if self.device.type != "cuda":
            asked = time.perf_counter()
            yield
            self.counted += time.perf_counter() - asked
            return
        if len(self.open) >= LEAD:
            self.open[-LEAD][1].synchronize()
        _ = self.seconds  # forget those that are done
        before = self._mark()
        yield
        self.open.append((before, self._mark()))

    def _mark(self) -> Any:
        # `blocking` leaves the processor to the threads that decode.
        mark = torch.cuda.Event(enable_timing=True, blocking=True)
        mark.record(torch.cuda.current_stream(self.device))
        return mark
