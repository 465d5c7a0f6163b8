"""How long the device waits for data, the number `data_wait` of the log, and what helps."""

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

MAX_LEAD = 4  # batches that the CPU may be ahead of the GPU: hides its work, bounds memory
MAX_DATA_WAIT = 0.05  # share of all time so far above which advice is given
ADVICE_AFTER = 10.0  # seconds of training that the share is measured over, at least
ADVICE = (
    "The network waited for data for {share:.0%} of the time so far. These help, best first: "
    "--data.storage cache (decode once, if there is room), --data.decoder nvjpeg on a GPU, more "
    "CPU cores, a smaller --data.store-size, images on a faster disk or in tar shards."
)


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


def advise_on_wait(waited: float, seconds: float) -> str | None:
    """Say what shortens the wait; None if it is short, or was measured for too few seconds."""
    if seconds < ADVICE_AFTER or waited <= MAX_DATA_WAIT * seconds:
        return None
    return ADVICE.format(share=waited / seconds)
