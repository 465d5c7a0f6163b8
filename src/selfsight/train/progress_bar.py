"""What a person sees while a run goes on: a bar on a terminal, plain lines elsewhere."""

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

PLAIN_EVERY = 10.0  # seconds between lines where there is no terminal
WAITING = 0.03  # share of time that may go to waiting for data
ADVICE = (
    "The network waits for data. What helps, best first: --data.storage cache (decode once, "
    "if there is room), --data.decoder nvjpeg on a GPU, more CPU cores, a smaller "
    "--data.store-size, images on a faster disk or in tar shards."
)


class Bar:
    """Progress with images per second, time left and the last metrics."""

    def __init__(self, console: Console, total: int, done: int, *, shown: bool) -> None:
        self.console, self.total, self.done = console, total, done
        self.draws = shown and console.is_terminal
        self.prints = shown and not console.is_terminal
        self.said, self.begun, self.skipped = 0.0, time.monotonic(), done
        self.records, self.advised = 0, False
        self.progress = Progress(
            TextColumn("training"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[words]}"),
            console=console,
        )
        self.task = self.progress.add_task("", total=total, completed=done, words="")

    def __enter__(self) -> "Bar":
        if self.draws:
            self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.draws:
            self.progress.stop()

    def begin(self, seconds: float) -> None:
        """The first step is done; what is left is judged by those that follow."""
        self.begun, self.skipped = time.monotonic(), self.done + 1
        if self.draws or self.prints:
            self.console.print(f"First step after {seconds:.1f} s.", highlight=False)

    def advance(self) -> None:
        """One more step is done."""
        self.done += 1
        self.progress.advance(self.task)

    def say(self, record: Mapping[str, Any]) -> None:
        """Show the newest record."""
        words = in_words(record)
        self.records += 1  # the first holds the wait for the very first batch
        if record["data_wait"] > WAITING and self.records > 1 and not self.advised:
            self.advised = True
            if self.draws or self.prints:
                self.console.print(ADVICE, highlight=False, soft_wrap=True)
        self.progress.update(self.task, words=words)
        now = time.monotonic()
        last = record["step"] == self.total
        if self.prints and (last or "online_knn" in record or now - self.said > PLAIN_EVERY):
            done = record["step"] - self.skipped
            left = (now - self.begun) / max(1, done) * (self.total - record["step"])
            self.console.print(
                f"step {record['step']}/{self.total}  {words}  {in_time(left)} left",
                highlight=False,
                soft_wrap=True,
            )
            self.said = now


def in_words(record: Mapping[str, Any]) -> str:
    """The numbers a person follows, in one line."""
    parts = [
        f"epoch {record['epoch']:.1f}",
        f"loss {record['loss']:.3f}",
        f"rank {record['effective_rank']:.0f}",
        f"{record['images_per_second']:,.0f} images/s",
    ]
    if "online_knn" in record:
        parts.append(f"online kNN {record['online_knn']:.1%}")
    if record.get("lost_steps"):
        parts.append(f"{record['lost_steps']} steps lost")
    if record["data_wait"] > WAITING:
        parts.append(f"waiting for data {record['data_wait']:.0%}")
    return "  ".join(parts)


def in_time(seconds: float) -> str:
    """Hours, minutes or seconds, whichever says most."""
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
