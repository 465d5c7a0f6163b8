"""Decoding in threads: Pillow lets go of the interpreter while it works."""

import os
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from sightline.data.decode import UnreadableError, decode
from sightline.data.source import Source

CHUNK = 32  # pictures per task
PATIENCE = 2.0  # seconds before a progress bar is worth its line
Decoded = np.ndarray | str  # HWC pixels, or why there are none


def decoded(source: Source, index: int, *, store_size: int, channels: int) -> Decoded:
    """One picture's pixels, or why it has none."""
    try:
        return decode(source.read(index), store_size=store_size, channels=channels)
    except FileNotFoundError:
        return "there is no such file"
    except OSError as error:
        return error.strerror or str(error)
    except UnreadableError as error:
        return str(error)


def decoded_in_order(
    source: Source,
    index: Sequence[int],
    *,
    store_size: int,
    channels: int,
    workers: int | None = None,
    progress: bool = False,
) -> Iterator[Decoded]:
    """The pictures in the order asked for; few are under way, so memory stays small."""
    workers = num_workers() if workers is None else max(1, workers)

    def some(part: Sequence[int]) -> list[Decoded]:
        return [decoded(source, i, store_size=store_size, channels=channels) for i in part]

    waiting: deque[Future[list[Decoded]]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="decode")
    try:
        with quiet(), _counted(source.name, len(index), progress) as count:
            for start in range(0, len(index), CHUNK):
                waiting.append(pool.submit(some, index[start : start + CHUNK]))
                if len(waiting) > 2 * workers:
                    yield from count(waiting.popleft().result())
            while waiting:
                yield from count(waiting.popleft().result())
    finally:
        pool.shutdown(cancel_futures=True)


def num_workers() -> int:
    """As many threads as this process may use processors."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def quiet() -> Iterator[None]:
    """Without Pillow's warnings of huge or odd files; what matters comes back as a reason.

    The filter belongs to the whole process, so it is set around threads, not within them.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\b")
        yield


@contextmanager
def _counted(
    name: str, total: int, wanted: bool
) -> Iterator[Callable[[list[Decoded]], list[Decoded]]]:
    """A function that pictures pass through, with a bar once it takes long."""
    began, done = time.monotonic(), 0
    task: TaskID | None = None
    columns = (
        TextColumn("decoding {task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=Console(stderr=True), transient=True)

    def count(part: list[Decoded]) -> list[Decoded]:
        nonlocal task, done
        done += len(part)
        if task is None and wanted and time.monotonic() - began > PATIENCE:
            bar.start()
            task = bar.add_task(name, total=total)
        if task is not None:
            bar.update(task, completed=done)
        return part

    try:
        yield count
    finally:
        bar.stop()
