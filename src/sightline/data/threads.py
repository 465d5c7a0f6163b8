"""Decoding in threads: Pillow lets go of the interpreter while it works."""

import functools
import os
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np

from sightline.data.decode import decode
from sightline.data.nvjpeg import decode_batch
from sightline.data.source import Source
from sightline.progress import Delayed

CHUNK = 64  # pictures per task
Decoded = np.ndarray | str  # HWC pixels, or why there are none


def decoded(read: Callable[[], bytes | np.ndarray], *, store_size: int, channels: int) -> Decoded:
    """One picture's pixels, or why it has none."""
    try:
        return decode(read(), store_size=store_size, channels=channels)
    except (OSError, ValueError) as error:
        return reason(error)


def reason(error: Exception) -> str:
    """Why a picture could not be read, in words."""
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    strerror = getattr(error, "strerror", None)
    return str(strerror or error or type(error).__name__)


def decoded_in_order(
    source: Source,
    index: Sequence[int],
    *,
    store_size: int,
    channels: int,
    decoder: str = "cpu",
    workers: int | None = None,
    progress: bool = False,
) -> Iterator[Decoded]:
    """The pictures in the order asked for; few are under way, so memory stays small."""
    workers = num_workers() if workers is None else max(1, workers)
    settings = {"store_size": store_size, "channels": channels}

    def some(part: Sequence[int]) -> list[Decoded]:
        return [decoded(functools.partial(source.read, i), **settings) for i in part]

    def encoded(part: Sequence[int]) -> list[bytes | np.ndarray | str]:
        return [_read(source, i) for i in part]

    task: Callable[[Sequence[int]], list[Any]] = some if decoder == "cpu" else encoded
    waiting: deque[Future[list[Any]]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="decode")

    def finished() -> list[Decoded]:
        part = waiting.popleft().result()
        bar.advance(len(part))
        return part if decoder == "cpu" else _on_gpu(part, **settings)

    try:
        title = f"decoding {source.name}" if progress else None
        with quiet(), Delayed(title, len(index)) as bar:
            for start in range(0, len(index), CHUNK):
                waiting.append(pool.submit(task, index[start : start + CHUNK]))
                if len(waiting) > 2 * workers:
                    yield from finished()
            while waiting:
                yield from finished()
    finally:
        pool.shutdown(cancel_futures=True)


def _read(source: Source, i: int) -> bytes | np.ndarray | str:
    try:
        return source.read(i)
    except (OSError, ValueError) as error:
        return reason(error)


def _on_gpu(part: list[bytes | np.ndarray | str], **settings: int) -> list[Decoded]:
    files = [one for one in part if not isinstance(one, str)]
    pixels = iter(decode_batch(files, device="cuda", **settings))
    out: list[Decoded] = []
    for one in part:
        now = one if isinstance(one, str) else next(pixels)
        out.append(now if isinstance(now, str) else now.cpu().permute(1, 2, 0).numpy())
    return out


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


def silence() -> None:
    """As `quiet`, for good: decoding that goes on in the background has no end to wait for."""
    warnings.filterwarnings("ignore", module=r"PIL\b")
