"""Progress and time left, once something has taken a moment: a bar on a terminal, else lines."""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from selfsight import dist

PATIENCE = 2.0  # seconds; a bar for less only flickers
PLAIN_EVERY = 30.0  # seconds between lines where there is no terminal
Item = TypeVar("Item")


class DelayedProgress:
    """Counts what is done and shows it, if it has a title; the first process speaks for all."""

    def __init__(self, title: str | None, total: int) -> None:
        self.title = None if dist.rank() else title
        self.total, self.done = total, 0
        self.began = self.said = time.monotonic()
        self.console = Console(stderr=True)
        self.bar: Progress | None = None

    def __enter__(self) -> "DelayedProgress":
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def advance(self, count: int = 1) -> None:
        """So many more are done."""
        self.done += count
        now = time.monotonic()
        if self.title is None or now - self.began < PATIENCE:
            return
        if self.console.is_terminal:
            self.bar = self.bar or self._started()
            self.bar.update(self.bar.task_ids[0], completed=self.done)
        elif now - self.said > PLAIN_EVERY:
            left = (now - self.began) / self.done * (self.total - self.done)
            line = f"{self.title}: {self.done}/{self.total}, {left:.0f} s left"
            print(line, file=self.console.file, flush=True)
            self.said = now

    def _started(self) -> Progress:
        bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
        )
        bar.add_task(str(self.title), total=self.total)
        bar.start()
        return bar


def track(items: Iterable[Item], title: str | None, total: int | None = None) -> Iterator[Item]:
    """The items, with their progress under a title."""
    if total is None:
        items = items if isinstance(items, Sequence) else list(items)
        total = len(items)
    with DelayedProgress(title, total) as bar:
        for item in items:
            yield item
            bar.advance()
