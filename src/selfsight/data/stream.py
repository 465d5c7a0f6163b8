"""Images that are read and decoded when they are asked for; none of their pixels are kept."""

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from selfsight import rng
from selfsight.data.decode_threads import own_workers, reason, silence
from selfsight.data.image_store import Images, Room, pack
from selfsight.data.nvjpeg import decode_batch
from selfsight.data.order import Shards
from selfsight.data.read_ahead import Encoded, Needed, Pieces
from selfsight.data.source import Source
from selfsight.data.worker_process import planes
from selfsight.data.workers import decoders_for
from selfsight.errors import UserError
from selfsight.ragged import Ragged

FETCHERS = 4  # threads that read files of this machine for a GPU that decodes
CHUNK = 16  # images per task
TRIES = 64  # images tried in place of others that cannot be read, before giving up is thought of
HOPELESS = 0.75  # share of them that cannot be read either
NOTED = 1000  # unreadable images that are remembered by name
EXPECTED = 16  # batches that may be under way


class Streamed(Images):
    """The interface of `Images` over an encoded source.

    An image that cannot be read is noted in `skipped`, and replaced by one from anywhere that can
    and that the batch does not hold yet: which one is a function of the batch alone.
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
        self.where_decoded = torch.device(device if decoder == "nvjpeg" else "cpu")
        self.names, self.class_names, self.notes = source.names, source.class_names, source.notes
        self.labels = None if source.labels is None else torch.from_numpy(source.labels)
        self.skipped: list[tuple[str, str]] = []
        cores, choose = own_workers(), decoder == "cpu" and workers is None
        self.processes = decoders_for(source, len(source), cores) if choose else None
        at_hand = decoder == "nvjpeg" and source.path is not None
        threads = min(FETCHERS, cores) if at_hand else cores
        self.threads = ThreadPoolExecutor(workers or threads, thread_name_prefix="decode")
        self.lock, self.begun = threading.Lock(), threading.Lock()
        self.pieces = None if self.shards is None else Pieces(source, self.shards)
        self.pending: OrderedDict[bytes, _Begun] = OrderedDict()
        silence()

    @property
    def device(self) -> torch.device:
        """Where pixels come out."""
        return self.where_decoded

    @property
    def bytes(self) -> int:
        """Nothing is kept."""
        return 0

    @property
    def kept(self) -> bool:
        """No batch is there before it is decoded."""
        return False

    @cached_property
    def shards(self) -> Shards | None:
        """Neighbors that are read in one go, where the source has such."""
        source = self.source
        if source.read_run is None or source.shards is None or source.group == 1:
            return None
        return Shards(source.shards, source.group)

    def to(self, device: torch.device | str) -> Images:
        """These: what is not kept cannot be moved."""
        return self

    def ragged(self, index: Int64[Tensor, " b"]) -> Ragged:
        """The images, decoded now."""
        images, _ = self.packed(index.cpu(), lambda n: torch.empty(n, dtype=torch.uint8))
        return images.to(self.device)

    def expect(self, index: Int64[Tensor, " b"]) -> None:
        """Begin to read these images, and to decode them if the CPU does that."""
        with self.begun:
            key = index.numpy().tobytes()
            if key not in self.pending:
                needed = {} if self.pieces is None else self.pieces.need(index.tolist())
                self.pending[key] = _Begun(self._begin(index), needed)
            while len(self.pending) > EXPECTED:
                forgotten = self.pending.popitem(last=False)[1]
                for future in forgotten.futures:
                    future.cancel()
                self._release(forgotten.needed)

    def packed(self, index: Int64[Tensor, " b"], room: Room) -> tuple[Ragged, Int64[Tensor, " b"]]:
        """The images, in the room given or where they were decoded; and which ones they are."""
        with self.begun:
            begun = self.pending.pop(index.numpy().tobytes(), None)
        futures, needed = begun or _Begun(self._begin(index), {})
        try:
            found = [one for future in futures for one in future.result()]
        finally:
            self._release(needed)
        chosen = index.tolist()
        if self.decoder == "nvjpeg":
            return self._on_device(chosen, found)
        self._replace(chosen, found)
        sizes = torch.tensor([part.shape[1:] for part in found])
        return pack(found, sizes, self.channels, room, self.pool), torch.tensor(chosen)

    def _begin(self, index: Tensor) -> "list[Future[list[Any]]]":
        """Tasks that read, and decode if the CPU does that."""
        task: Callable[[Sequence[int]], list[Any]]
        task = self._decoded if self.decoder == "cpu" else self._encoded
        return [self.threads.submit(task, part.tolist()) for part in index.split(CHUNK)]

    def _release(self, needed: Needed) -> None:
        if self.pieces is not None:
            self.pieces.release(needed)

    def _on_device(self, chosen: list[int], found: list[Any]) -> tuple[Ragged, Tensor]:
        files = [one for one in found if not isinstance(one, str)]
        settings = dict(store_size=self.store_size, channels=self.channels)
        pixels = iter(decode_batch(files, device=self.device, **settings))
        found = [one if isinstance(one, str) else next(pixels) for one in found]
        self._replace(chosen, found)
        good = [torch.as_tensor(one, device=self.device) for one in found]
        sizes = torch.tensor([x.shape[1:] for x in good])
        ends = (sizes.prod(1) * self.channels).cumsum(0)
        largest = (int(sizes[:, 0].max()), int(sizes[:, 1].max()))
        flat = torch.cat([x.flatten() for x in good])
        starts = ends - sizes.prod(1) * self.channels
        return Ragged(flat, starts, sizes, self.channels, largest), torch.tensor(chosen)

    def _replace(self, chosen: list[int], found: list[Any]) -> None:
        """Put pixels of others where there is only a reason, and say which others these are."""
        failed = [place for place, one in enumerate(found) if isinstance(one, str)]
        if not failed:
            return
        count, taken = len(self.source), set(chosen)
        others = {place: _others(chosen[place], count) for place in failed}
        for place in failed:
            self._note(chosen[place], found[place])
        tried = broken = 0
        while failed:
            now, failed = failed[:CHUNK], failed[CHUNK:]
            for place in now:
                # A set that the batch holds wholly has no others.
                free = (i for i in others[place] if i not in taken or len(taken) >= count)
                chosen[place] = next(free)
                taken.add(chosen[place])
            tried += len(now)
            for place, one in zip(
                now, self.pool.map(self._decode, [chosen[place] for place in now]), strict=True
            ):
                found[place] = one
                if isinstance(one, str):
                    self._note(chosen[place], one)
                    broken += 1
                    failed.append(place)
            if broken >= TRIES and broken >= HOPELESS * tried:
                raise self._hopeless(broken, tried)

    def _decoded(self, part: Sequence[int]) -> list[np.ndarray | str]:
        """In a process if there are any; what that cannot read is looked at here."""
        if self.processes is None:
            return [self._decode(i) for i in part]
        alone = self.source.path if self.shards is None else None
        try:
            handed = [self._read(i) if alone is None else alone(i) for i in part]
        except (OSError, ValueError):
            return [self._decode(i) for i in part]
        settings = dict(store_size=self.store_size, channels=self.channels)
        found = zip(part, self.processes(handed, **settings), strict=True)
        return [self._decode(i) if isinstance(x, str) else x for i, x in found]

    def _decode(self, i: int) -> np.ndarray | str:
        """An image's pixels [C, H, W], or why there are none."""
        return planes(lambda: self._read(i), store_size=self.store_size, channels=self.channels)

    def _encoded(self, part: Sequence[int]) -> list[Encoded | str]:
        return [self._fetch(i) for i in part]

    def _fetch(self, i: int) -> Encoded | str:
        try:
            return self._read(i)
        except (OSError, ValueError) as error:
            return reason(error)

    def _read(self, i: int) -> Encoded:
        return self.source.read(i) if self.pieces is None else self.pieces.read(i)

    def _note(self, i: int, why: str) -> None:
        noted = (str(self.names[i]), why)
        with self.lock:
            if len(self.skipped) < NOTED and noted not in self.skipped:
                self.skipped.append(noted)

    def _hopeless(self, broken: int, tried: int) -> UserError:
        name, why = self.skipped[-1]
        return UserError(
            f"{broken} of {tried} images of {self.source.name} tried in a row cannot be read; "
            f"the last is {name}: {why}. Check that the data are whole and can be reached."
        )


class _Begun(NamedTuple):
    """Tasks of a batch, and the pieces that are kept for it."""

    futures: list[Future[list[Any]]]
    needed: Needed


def _others(index: int, count: int) -> Iterator[int]:
    """Images to be tried in place of one: all there are, from anywhere, again and again."""
    key = rng.key(0, "instead")
    start = int(rng.bits(key, torch.tensor([index]), 1))
    for first in itertools.count(start, CHUNK):
        yield from rng.shuffled(key, count, torch.arange(first, first + CHUNK) % count).tolist()
