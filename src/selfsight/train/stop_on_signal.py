"""Stop all processes of a run after the same step, when one of them gets a signal."""

import os
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from selfsight import dist
from selfsight.stop_signals import exit_status, restore_handlers, set_handler

FORCE_AFTER = 1.0  # seconds; torchrun repeats a Ctrl-C that the terminal has sent already


class Request(NamedTuple):
    """The request that all processes agreed on."""

    signal_number: int = 0  # 0: the run continues
    save: bool = False


class StopRequest:
    """Remembers a signal until the step is done; a second Ctrl-C exits without saving."""

    def __init__(self) -> None:
        self.signal_number, self.received_at = 0, 0.0
        self.previous_handlers: dict[int, Any] = {}
        self.group = dist.cpu_group()
        self.pending: Callable[[], Tensor] | None = None

    def __enter__(self) -> "StopRequest":
        self.previous_handlers = set_handler(self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        restore_handlers(self.previous_handlers)

    def agree(self, *, save: bool, now: bool) -> Request:
        """Return what any process requests; every process calls this once per step.

        Unless it is needed `now`, several processes get the answer of the previous step, so that
        none has to wait for another.
        """
        own = torch.tensor([self.signal_number, int(save)])
        if dist.world_size() == 1:
            return Request(self.signal_number, save)
        pending, self.pending = self.pending, dist.start_max(own, self.group)
        answers = [wait() for wait in (pending, self.pending if now else None) if wait]
        if not answers:
            return Request()
        signal_number, any_save = torch.stack(answers).amax(dim=0).tolist()
        return Request(signal_number, bool(any_save))

    def _receive(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if number == signal.SIGINT == self.signal_number and now - self.received_at > FORCE_AFTER:
            os.write(2, b"\nselfsight: stopped by Ctrl-C, without a checkpoint of this step.\n")
            os._exit(exit_status(number))
        if not self.signal_number:
            self.signal_number, self.received_at = number, now
