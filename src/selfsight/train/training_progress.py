"""The progress of a run: a bar on a terminal, plain lines elsewhere."""

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from selfsight.data.data_wait import advise_on_wait
from selfsight.terminal.console import is_verbose

LINE_EVERY = 10.0  # seconds between lines if there is no terminal
SHOWN_DATA_WAIT = 0.03  # share of time spent waiting for data that a line mentions


class ProgressBar:
    """Progress with images per second, time left and the last metrics."""

    def __init__(self, console: Console, total: int, done: int, *, shown: bool) -> None:
        self.console, self.total, self.done = console, total, done
        self.has_bar = shown and console.is_terminal
        self.prints_lines = shown and not console.is_terminal
        self.printed, self.started, self.first = 0.0, time.monotonic(), done
        self.last_time: float | None = None  # of the last record
        self.seconds, self.waited, self.advised = 0.0, 0.0, False
        self.progress = Progress(
            TextColumn("training"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),  # the bar gives way, not this
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
        """Count one more step; say so now and then where there is no bar."""
        self.done += 1
        self.progress.advance(self.task)
        now = time.monotonic()
        quiet = now - max(self.printed, self.started)
        if self.prints_lines and quiet > LINE_EVERY and self.done > self.first:
            left = (now - self.started) / (self.done - self.first) * (self.total - self.done)
            self.console.print(f"step {self.done}/{self.total}  {format_duration(left)} left")
            self.printed = now

    def update(self, record: Mapping[str, Any]) -> None:
        """Show the newest record."""
        line = summary_line(record)
        self._advise(record)
        self.progress.update(self.task, text=line)
        now = time.monotonic()
        last = record["step"] == self.total
        late = now - self.printed > LINE_EVERY
        if is_verbose() or (self.prints_lines and (last or "online_knn" in record or late)):
            done = record["step"] - self.first
            left = (now - self.started) / max(1, done) * (self.total - record["step"])
            self.console.print(
                f"step {record['step']}/{self.total}  {line}  {format_duration(left)} left",
                soft_wrap=True,
            )
            self.printed = now

    def _advise(self, record: Mapping[str, Any]) -> None:
        """Give advice once if much of the time after the first record went to waiting."""
        if self.last_time is not None:  # the first record includes the wait for the first batch
            seconds = record["time"] - self.last_time
            self.seconds += seconds
            self.waited += seconds * record["data_wait"]
        self.last_time = record["time"]
        advice = advise_on_wait(self.waited, self.seconds)
        if advice and not self.advised and (self.has_bar or self.prints_lines):
            self.advised = True
            self.console.print(advice, highlight=False, soft_wrap=True)


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
    if record["data_wait"] > SHOWN_DATA_WAIT:
        texts.append(f"waiting for data {record['data_wait']:.0%}")
    return "  ".join(texts)


def format_duration(seconds: float) -> str:
    """Format seconds as hours, minutes or seconds."""
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
