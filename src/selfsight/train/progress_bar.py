"""The progress of a run: a bar on a terminal, plain lines elsewhere."""

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

LINE_EVERY = 10.0  # seconds between lines if there is no terminal
MAX_DATA_WAIT = 0.03  # share of time that may go to waiting for data
ADVICE = (
    "The network waits for data. These help, best first: --data.storage cache (decode once, "
    "if there is room), --data.decoder nvjpeg on a GPU, more CPU cores, a smaller "
    "--data.store-size, images on a faster disk or in tar shards."
)


class ProgressBar:
    """Progress with images per second, time left and the last metrics."""

    def __init__(self, console: Console, total: int, done: int, *, shown: bool) -> None:
        self.console, self.total, self.done = console, total, done
        self.has_bar = shown and console.is_terminal
        self.prints_lines = shown and not console.is_terminal
        self.printed, self.started, self.first = 0.0, time.monotonic(), done
        self.records, self.advised = 0, False
        self.progress = Progress(
            TextColumn("training"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[text]}", markup=False),
            console=console,
        )
        self.task = self.progress.add_task("", total=total, completed=done, text="")

    def __enter__(self) -> "ProgressBar":
        if self.has_bar:
            self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.has_bar:
            self.progress.stop()

    def begin(self, seconds: float) -> None:
        """Report the first step; the time left is estimated from those that follow."""
        self.started, self.first = time.monotonic(), self.done + 1
        if self.has_bar or self.prints_lines:
            self.console.print(f"First step after {seconds:.1f} s.")

    def advance(self) -> None:
        """Count one more step."""
        self.done += 1
        self.progress.advance(self.task)

    def update(self, record: Mapping[str, Any]) -> None:
        """Show the newest record."""
        line = summary_line(record)
        self.records += 1  # the first includes the wait for the first batch
        if record["data_wait"] > MAX_DATA_WAIT and self.records > 1 and not self.advised:
            self.advised = True
            if self.has_bar or self.prints_lines:
                self.console.print(ADVICE, soft_wrap=True)
        self.progress.update(self.task, text=line)
        now = time.monotonic()
        last = record["step"] == self.total
        if self.prints_lines and (
            last or "online_knn" in record or now - self.printed > LINE_EVERY
        ):
            done = record["step"] - self.first
            left = (now - self.started) / max(1, done) * (self.total - record["step"])
            self.console.print(
                f"step {record['step']}/{self.total}  {line}  {format_duration(left)} left",
                soft_wrap=True,
            )
            self.printed = now


def summary_line(record: Mapping[str, Any]) -> str:
    """Format the most important numbers of a record in one line."""
    texts = [
        f"epoch {record['epoch']:.1f}",
        f"loss {record['loss']:.3f}",
        f"rank {record['effective_rank']:.0f}",
        f"{record['images_per_second']:,.0f} images/s",
    ]
    if "online_knn" in record:
        texts.append(f"online_knn {record['online_knn']:.1%}")
    if record.get("skipped_steps"):
        texts.append(f"{record['skipped_steps']} steps skipped")
    if record["data_wait"] > MAX_DATA_WAIT:
        texts.append(f"waiting for data {record['data_wait']:.0%}")
    return "  ".join(texts)


def format_duration(seconds: float) -> str:
    """Format seconds as hours, minutes or seconds."""
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
