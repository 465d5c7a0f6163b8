"""Images that are read and decoded anew whenever they are needed; no pixels are stored."""

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any, NamedTuple

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from selfsight import rng
from selfsight.data.cgroup_limits import cpus_per_process
from selfsight.data.decode import (
    Decoded,
    Encoded,
    describe_error,
    ignore_pillow_warnings,
    try_decode,
)
from selfsight.data.image_store import COPY_THREADS, Allocate, copy_to_ragged
from selfsight.data.nvjpeg import decode_batch
from selfsight.data.order import Shards
from selfsight.data.shard_reader import ChunkUses, ShardReader
from selfsight.data.sources.source import Source
from selfsight.data.workers import start_processes
from selfsight.errors import UserError
from selfsight.ragged import Ragged

READ_THREADS = 4  # that read local files for a GPU that decodes
CHUNK = 16  # images per task
MIN_FAILURES = 64  # unreadable replacements before the run may give up
MAX_FAILURE_RATE = 0.75  # of the replacements tried, above which the run gives up
MAX_SKIPPED = 1000  # unreadable images that are recorded by name
MAX_PENDING = 16  # prefetched batches


class StreamedImages:
    """An `ImageStore` that decodes images when they are needed.

    An unreadable image is recorded in `skipped` and replaced by a readable one that the batch does
    not hold yet. Which one depends on the batch alone.
    """

    def __init__(
        self,
        source: Source,
        *,
        store_size: int,
        channels: int,
        decoder: str = "cpu",
        device: torch.device | str = "cpu",
        workers: int | None = None,
    ) -> None:
        self.source, self.store_size, self.channels = source, store_size, channels
        self.decoder = decoder
        self.device = torch.device(device if decoder == "nvjpeg" else "cpu")
        self.names, self.class_names, self.notes = source.names, source.class_names, source.notes
        self.labels = None if source.labels is None else torch.from_numpy(source.labels)
        self.skipped: list[tuple[str, str]] = []
        cores = cpus_per_process()
        use_processes = decoder == "cpu" and workers is None
        self.processes = start_processes(source, len(source), cores) if use_processes else None
        only_read = decoder == "nvjpeg" and source.local_path is not None
        threads = min(READ_THREADS, cores) if only_read else cores
        self.threads = ThreadPoolExecutor(workers or threads, thread_name_prefix="decode")
        self.copy_threads = ThreadPoolExecutor(COPY_THREADS, thread_name_prefix="copy")
        self.skipped_lock, self.pending_lock = threading.Lock(), threading.Lock()
        self.reader = None if self.shards is None else ShardReader(source, self.shards)
        self.pending: OrderedDict[bytes, _PendingBatch] = OrderedDict()
        ignore_pillow_warnings()

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def shards(self) -> Shards | None:
        """Shards, if the source can read neighboring images at once."""
        source = self.source
        if source.read_range is None or source.shard_starts is None or source.chunk_size == 1:
            return None
        return Shards(source.shard_starts, source.chunk_size)

    def close(self) -> None:
        """End the worker processes and threads; without a call they end with this object."""
        self.threads.shutdown(cancel_futures=True)
        self.copy_threads.shutdown()
        if self.processes is not None:
            self.processes.close()

    def ragged(self, index: Int64[Tensor, " b"]) -> Ragged:
        """Decode the images now; return them on `device`."""
        images, _ = self.pack(index.cpu(), lambda n: torch.empty(n, dtype=torch.uint8))
        return images.to(self.device)

    def batch(
        self, index: Int64[Tensor, " b"]
    ) -> tuple[UInt8[Tensor, "b c h w"], Int64[Tensor, "b 2"]]:
        """Pixels, padded with zeros to the largest image, and each image's height and width."""
        images = self.ragged(index)
        return images.padded(), images.sizes

    def prefetch(self, index: Int64[Tensor, " b"]) -> None:
        """Start to read these images, and to decode them if the CPU decodes."""
        with self.pending_lock:
            key = index.numpy().tobytes()
            if key not in self.pending:
                uses = {} if self.reader is None else self.reader.acquire(index.tolist())
                self.pending[key] = _PendingBatch(self._start_tasks(index), uses)
            while len(self.pending) > MAX_PENDING:
                oldest = self.pending.popitem(last=False)[1]
                for future in oldest.futures:
                    future.cancel()
                self._release(oldest.uses)

    def pack(
        self, index: Int64[Tensor, " b"], allocate: Allocate
    ) -> tuple[Ragged, Int64[Tensor, " b"]]:
        """The decoded images in one buffer, and their numbers.

        nvJPEG's pixels stay on the GPU; otherwise they are copied to an allocated buffer.
        """
        with self.pending_lock:
            pending = self.pending.pop(index.numpy().tobytes(), None)
        futures, uses = pending or _PendingBatch(self._start_tasks(index), {})
        try:
            results = [result for future in futures for result in future.result()]
        finally:
            self._release(uses)
        numbers = index.tolist()
        if self.decoder == "nvjpeg":
            return self._decode_on_gpu(numbers, results)
        self._replace_unreadable(numbers, results)
        sizes = torch.tensor([pixels.shape[1:] for pixels in results])
        images = copy_to_ragged(results, sizes, self.channels, allocate, self.copy_threads)
        return images, torch.tensor(numbers)

    def _start_tasks(self, index: Tensor) -> "list[Future[list[Any]]]":
        """Start to read, and to decode if the CPU decodes."""
        task: Callable[[Sequence[int]], list[Any]]
        task = self._decode_chunk if self.decoder == "cpu" else self._read_chunk
        return [self.threads.submit(task, chunk.tolist()) for chunk in index.split(CHUNK)]

    def _release(self, uses: ChunkUses) -> None:
        if self.reader is not None:
            self.reader.release(uses)

    def _decode_on_gpu(self, numbers: list[int], results: list[Any]) -> tuple[Ragged, Tensor]:
        files = [file for file in results if not isinstance(file, str)]
        settings = dict(store_size=self.store_size, channels=self.channels)
        pixels = iter(decode_batch(files, device=self.device, **settings))
        results = [file if isinstance(file, str) else next(pixels) for file in results]
        self._replace_unreadable(numbers, results)
        images = [torch.as_tensor(x, device=self.device) for x in results]
        sizes = torch.tensor([x.shape[1:] for x in images])
        ends = (sizes.prod(1) * self.channels).cumsum(0)
        largest = (int(sizes[:, 0].max()), int(sizes[:, 1].max()))
        flat = torch.cat([x.flatten() for x in images])
        starts = ends - sizes.prod(1) * self.channels
        return Ragged(flat, starts, sizes, self.channels, largest), torch.tensor(numbers)

    def _replace_unreadable(self, numbers: list[int], results: list[Any]) -> None:
        """Replace each reason in `results` by the pixels of another image, and its number."""
        failed = [place for place, result in enumerate(results) if isinstance(result, str)]
        if not failed:
            return
        count, in_batch = len(self.source), set(numbers)
        candidates = {place: _replacements(numbers[place], count) for place in failed}
        for place in failed:
            self._record_skipped(numbers[place], results[place])
        tried = unreadable = 0
        while failed:
            places, failed = failed[:CHUNK], failed[CHUNK:]
            for place in places:
                # If the batch holds the whole data set, an image has to come twice.
                free = (i for i in candidates[place] if i not in in_batch or len(in_batch) >= count)
                numbers[place] = next(free)
                in_batch.add(numbers[place])
            tried += len(places)
            decoded = self.copy_threads.map(self._decode_one, [numbers[p] for p in places])
            for place, pixels in zip(places, decoded, strict=True):
                results[place] = pixels
                if isinstance(pixels, str):
                    self._record_skipped(numbers[place], pixels)
                    unreadable += 1
                    failed.append(place)
            if unreadable >= MIN_FAILURES and unreadable >= MAX_FAILURE_RATE * tried:
                name, reason = self.skipped[-1]
                raise UserError(
                    f"{unreadable} of {tried} images of {self.source.name} tried in a row cannot "
                    f"be read; the last is {name}: {reason}. Check that the data are complete and "
                    "reachable."
                )

    def _decode_chunk(self, numbers: Sequence[int]) -> list[Decoded]:
        """Decode in a process if there are any; failures are tried again in this thread."""
        if self.processes is None:
            return [self._decode_one(i) for i in numbers]
        local_path = self.source.local_path if self.shards is None else None
        try:
            requests = [self._read(i) if local_path is None else local_path(i) for i in numbers]
        except (OSError, ValueError):
            return [self._decode_one(i) for i in numbers]
        settings = dict(store_size=self.store_size, channels=self.channels)
        decoded = zip(numbers, self.processes.decode(requests, **settings), strict=True)
        return [self._decode_one(i) if isinstance(x, str) else x for i, x in decoded]

    def _decode_one(self, i: int) -> Decoded:
        return try_decode(lambda: self._read(i), store_size=self.store_size, channels=self.channels)

    def _read_chunk(self, numbers: Sequence[int]) -> list[Encoded | str]:
        return [self._try_read(i) for i in numbers]

    def _try_read(self, i: int) -> Encoded | str:
        try:
            return self._read(i)
        except (OSError, ValueError) as error:
            return describe_error(error)

    def _read(self, i: int) -> Encoded:
        return self.source.read(i) if self.reader is None else self.reader.read(i)

    def _record_skipped(self, i: int, reason: str) -> None:
        skipped = (str(self.names[i]), reason)
        with self.skipped_lock:
            if len(self.skipped) < MAX_SKIPPED and skipped not in self.skipped:
                self.skipped.append(skipped)


class _PendingBatch(NamedTuple):
    """Tasks of a prefetched batch, and the chunks that it uses."""

    futures: list[Future[list[Any]]]
    uses: ChunkUses


def _replacements(index: int, count: int) -> Iterator[int]:
    """Images to try in place of an unreadable one: a shuffled data set, again and again."""
    key = rng.key(0, "instead")
    start = int(rng.bits(key, torch.tensor([index]), 1))
    for first in itertools.count(start, CHUNK):
        yield from rng.shuffled(key, count, torch.arange(first, first + CHUNK) % count).tolist()
