"""Many images decoded in the order asked for: in processes, in threads, or on a GPU."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from selfsight.data.decode_threads import Decoded, decoded, num_workers, quiet, reason
from selfsight.data.nvjpeg import decode_batch
from selfsight.data.source import Source
from selfsight.data.workers import decoders_for
from selfsight.progress import DelayedProgress

CHUNK = 64  # images per task


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
    """The images in the order asked for; few are under way, so memory stays small.

    Threads, `workers` of them, read; processes decode if there is much to do and `workers` is not
    given, else these threads.
    """
    cores, choose = num_workers(), decoder == "cpu" and workers is None
    processes = decoders_for(source, len(index), cores) if choose else None
    workers = cores if workers is None else max(1, workers)
    settings = {"store_size": store_size, "channels": channels}

    def some(part: Sequence[int]) -> list[Decoded]:
        if processes is None:
            return [decoded(lambda i=i: source.read(i), **settings) for i in part]  # type: ignore[misc]
        handed = source.read if source.path is None else source.path
        read = [_read(handed, i) for i in part]
        pixels = iter(processes([one for one in read if not isinstance(one, OSError)], **settings))
        return [str(one) if isinstance(one, OSError) else _standing(next(pixels)) for one in read]

    def encoded(part: Sequence[int]) -> list[Any]:
        return [_read(source.read, i) for i in part]

    task: Callable[[Sequence[int]], list[Any]] = some if decoder == "cpu" else encoded
    waiting: deque[Future[list[Any]]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="decode")

    def finished() -> list[Decoded]:
        part = waiting.popleft().result()
        bar.advance(len(part))
        return part if decoder == "cpu" else _on_gpu(part, **settings)

    try:
        title = f"decoding {source.name}" if progress else None
        with quiet(), DelayedProgress(title, len(index)) as bar:
            for start in range(0, len(index), CHUNK):
                waiting.append(pool.submit(task, index[start : start + CHUNK]))
                if len(waiting) > 2 * workers:
                    yield from finished()
            while waiting:
                yield from finished()
    finally:
        pool.shutdown(cancel_futures=True)


def _read(read: Callable[[int], Any], i: int) -> Any:
    """What is to be decoded, or an OSError that says why there is nothing."""
    try:
        return read(i)
    except (OSError, ValueError) as error:
        return OSError(reason(error))


def _standing(pixels: np.ndarray | str) -> Decoded:
    """Rows, columns and channels, where channels came first."""
    return pixels if isinstance(pixels, str) else pixels.transpose(1, 2, 0)


def _on_gpu(part: list[Any], **settings: int) -> list[Decoded]:
    files = [one for one in part if not isinstance(one, OSError)]
    pixels = iter(decode_batch(files, device="cuda", **settings))
    out: list[Decoded] = []
    for one in part:
        now = str(one) if isinstance(one, OSError) else next(pixels)
        out.append(now if isinstance(now, str) else now.cpu().permute(1, 2, 0).numpy())
    return out
