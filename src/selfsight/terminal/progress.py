"""Progress and time left of long work: a bar on a terminal, lines elsewhere."""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from selfsight import dist
from selfsight.errors import escape
from selfsight.terminal.console import open_console

DELAY = 2.0  # seconds before a bar appears; for shorter work it would only flicker
LINE_EVERY = 30.0  # seconds between lines if there is no terminal
Item = TypeVar("Item")


class DelayedProgress:
    """Progress of the first process, shown after a delay; without a title, nothing is shown."""

    def __init__(self, title: str | None, total: int, *, unit: str | None = None) -> None:
        """With a unit, such as images, also show how many of them a second."""
        self.unit = unit
        self.total, self.done = total, 0
        self.started = self.printed = time.monotonic()
        self.console = open_console(stderr=True)
        hidden = dist.rank() or title is None or self.console.quiet
        self.title = None if hidden else escape(str(title))
        self.bar: Progress | None = None

    def __enter__(self) -> "DelayedProgress":
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def advance(self, count: int = 1) -> None:
        """Count finished items."""
        self.done += count
        now = time.monotonic()
        if self.title is None or now - self.started < DELAY:
            return
        if self.console.is_terminal:
            self.bar = self.bar or self._start_bar()
            rate = self._describe_rate(now)
            self.bar.update(self.bar.task_ids[0], completed=self.done, rate=rate)
        elif now - self.printed > LINE_EVERY:
            left = (now - self.started) / self.done * (self.total - self.done)
            rate = self._describe_rate(now)
            line = f"{self.title}: {self.done}/{self.total}, {rate}{left:.0f} s left"
            print(line, file=self.console.file, flush=True)
            self.printed = now

    def _describe_rate(self, now: float) -> str:
        seconds = max(now - self.started, 1e-9)
        return f"{self.done / seconds:,.0f} {self.unit}/s, " if self.unit else ""

    def _start_bar(self) -> Progress:
        bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),  # the bar gives way, not this
            TextColumn("{task.fields[rate]}", markup=False),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
        )
        bar.add_task(str(self.title), total=self.total, rate="")
        bar.start()
        return bar


def track(items: Iterable[Item], title: str | None, total: int | None = None) -> Iterator[Item]:
    """Iterate over items and show the progress."""
    if total is None:
        items = items if isinstance(items, Sequence) else list(items)
        total = len(items)
    with DelayedProgress(title, total) as bar:
        for item in items:
            yield item
            bar.advance()
