"""Images that are read and decoded whenever they are needed; no pixels are stored.

Shards are read in chunks of neighboring images, ahead of the batches that need them.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any, NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from selfsight.data.cgroup_limits import cpus_per_process
from selfsight.data.decoders.decode_image import Decoded, Encoded, try_decode, try_read
from selfsight.data.decoders.decode_workers import start_processes
from selfsight.data.decoders.nvjpeg import decode_with_nvjpeg
from selfsight.data.decoders.pillow_formats import ignore_pillow_warnings
from selfsight.data.eval_transform import EvalTransform
from selfsight.data.image_order import Shards
from selfsight.data.image_store import COPY_THREADS, Allocate, copy_to_ragged
from selfsight.data.replace_unreadable import replace_unreadable
from selfsight.data.sources.shard_reader import ChunkUses, ShardReader
from selfsight.data.sources.source import Source
from selfsight.ragged_batch import Ragged

READ_THREADS = 4  # that read local files for a GPU that decodes
IMAGES_PER_TASK = 16
MAX_SKIPPED = 1000  # unreadable images that are recorded by name
MAX_PENDING = 16  # prefetched batches


class StreamedImages:
    """An `ImageStore` that decodes images when they are needed.

    An unreadable image is recorded in `skipped` and replaced by a readable one that the batch does
    not hold yet. The choice depends only on the batch.
    """

    def __init__(
        self,
        source: Source,
        *,
        channels: int,
        dtype: str = "uint8",
        store_size: int | None = None,
        transform: EvalTransform | None = None,
        decoder: str = "cpu",
        device: torch.device | str = "cpu",
        workers: int | None = None,
    ) -> None:
        """Images have a short side of at most `store_size`, or are the crops of `transform`."""
        self.source, self.channels, self.transform = source, channels, transform
        crop = transform.crop if transform else None
        self.pixels: dict[str, Any] = {"store_size": store_size, "channels": channels, "crop": crop}
        self.pixels["dtype"] = transform.dtype if transform else dtype
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
        return [self.threads.submit(task, chunk.tolist()) for chunk in index.split(IMAGES_PER_TASK)]

    def _release(self, uses: ChunkUses) -> None:
        if self.reader is not None:
            self.reader.release(uses)

    def _decode_on_gpu(self, numbers: list[int], results: list[Any]) -> tuple[Ragged, Tensor]:
        results = decode_with_nvjpeg(
            results,
            store_size=self.pixels["store_size"],
            channels=self.channels,
            device=self.device,
        )
        self._replace_unreadable(numbers, results)
        images = [torch.as_tensor(x, device=self.device) for x in results]
        sizes = torch.tensor([x.shape[1:] for x in images])
        ends = (sizes.prod(1) * self.channels).cumsum(0)
        largest = (int(sizes[:, 0].max()), int(sizes[:, 1].max()))
        flat = torch.cat([x.flatten() for x in images])
        starts = ends - sizes.prod(1) * self.channels
        return Ragged(flat, starts, sizes, self.channels, largest), torch.tensor(numbers)

    def _replace_unreadable(self, numbers: list[int], results: list[Any]) -> None:
        replace_unreadable(
            numbers,
            results,
            data=self.source.name,
            names=self.names,
            decode=lambda images: self.copy_threads.map(self._decode_one, images),
            record=self._record_skipped,
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
        decoded = self.processes.decode(requests, **self.pixels)
        return [
            self._decode_one(i) if isinstance(x, str) else x
            for i, x in zip(numbers, decoded, strict=True)
        ]

    def _decode_one(self, i: int) -> Decoded:
        return try_decode(lambda: self._read(i), **self.pixels)

    def _read_chunk(self, numbers: Sequence[int]) -> list[Encoded | str]:
        return [try_read(self._read, i) for i in numbers]

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
