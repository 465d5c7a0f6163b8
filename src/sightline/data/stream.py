"""Pictures that are read and decoded when they are asked for; none of their pixels are kept."""

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from sightline import dist
from sightline.data.decoders import decoders_for
from sightline.data.nvjpeg import decode_batch
from sightline.data.order import LANES, PIECES, WINDOW, Shards
from sightline.data.pictures import Pictures, Room, pack
from sightline.data.source import Source
from sightline.data.threads import decoded, own_workers, reason, silence
from sightline.errors import UserError
from sightline.ragged import Ragged

FETCHERS = 4  # threads that read files of this machine for a GPU that decodes
READERS = 8  # runs of neighbours that are read at once: remote ones take their time
CHUNK = 16  # pictures per task
TRIES = 16  # neighbours tried in place of a picture that cannot be read
NOTED = 1000  # unreadable pictures that are remembered by name
EXPECTED = 16  # batches that may be under way
Encoded = bytes | np.ndarray


class Streamed(Pictures):
    """The interface of `Pictures` over an encoded source.

    A picture that cannot be read is replaced by the next that can, and noted in `skipped`.
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
        self.readers = ThreadPoolExecutor(READERS, thread_name_prefix="read")
        self.lock, self.begun = threading.Lock(), threading.Lock()
        self.runs: OrderedDict[int, Future[Sequence[Encoded]]] = OrderedDict()
        self.pending: OrderedDict[bytes, list[Future[list[_Found]]]] = OrderedDict()
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

    @property
    def shards(self) -> Shards | None:
        """Neighbours that are read in one go, where the source has such."""
        source = self.source
        if source.read_run is None or source.shards is None or source.group == 1:
            return None
        return Shards(source.shards, source.group)

    def to(self, device: torch.device | str) -> Pictures:
        """These: what is not kept cannot be moved."""
        return self

    def ragged(self, index: Int64[Tensor, " b"]) -> Ragged:
        """The pictures, decoded now."""
        pictures, _ = self.packed(index.cpu(), lambda n: torch.empty(n, dtype=torch.uint8))
        return pictures.to(self.device)

    def expect(self, index: Int64[Tensor, " b"]) -> None:
        """Begin to read these pictures, and to decode them if the CPU does that."""
        with self.begun:
            if (shards := self.shards) is not None:
                for first, behind in sorted({shards.run(i) for i in index.tolist()}):
                    self._run(first, behind)
            key = index.numpy().tobytes()
            if key not in self.pending:
                self.pending[key] = self._begin(index)
            while len(self.pending) > EXPECTED:
                for future in self.pending.popitem(last=False)[1]:
                    future.cancel()

    def packed(self, index: Int64[Tensor, " b"], room: Room) -> tuple[Ragged, Int64[Tensor, " b"]]:
        """The pictures, in the room given or where they were decoded; and which ones they are."""
        with self.begun:
            futures = self.pending.pop(index.numpy().tobytes(), None)
        found = [one for future in futures or self._begin(index) for one in future.result()]
        if self.decoder == "nvjpeg":
            return self._on_device(found)
        parts = [one.data for one in found if isinstance(one.data, np.ndarray)]
        sizes = torch.tensor([part.shape[1:] for part in parts])
        chosen = torch.tensor([one.index for one in found])
        return pack(parts, sizes, self.channels, room, self.pool), chosen

    def _begin(self, index: Tensor) -> "list[Future[list[_Found]]]":
        """Tasks that read, and decode if the CPU does that."""
        task = self._decoded if self.decoder == "cpu" else self._encoded
        return [self.threads.submit(task, part.tolist()) for part in index.split(CHUNK)]

    def _on_device(self, found: "list[_Found]") -> tuple[Ragged, Tensor]:
        files = [one.data for one in found]
        settings = dict(store_size=self.store_size, channels=self.channels)
        pixels = decode_batch(files, device=self.device, **settings)
        for i, (one, now) in enumerate(zip(found, pixels, strict=True)):
            if isinstance(now, str):
                self._note(one.index, now)
                found[i] = self._decode(one.index + 1)
                pixels[i] = torch.from_numpy(found[i].data).to(self.device)
        good = [x for x in pixels if isinstance(x, Tensor)]
        sizes = torch.tensor([x.shape[1:] for x in good])
        ends = (sizes.prod(1) * self.channels).cumsum(0)
        largest = (int(sizes[:, 0].max()), int(sizes[:, 1].max()))
        flat = torch.cat([x.flatten() for x in good])
        chosen = torch.tensor([one.index for one in found])
        starts = ends - sizes.prod(1) * self.channels
        return Ragged(flat, starts, sizes, self.channels, largest), chosen

    def _decoded(self, part: Sequence[int]) -> "list[_Found]":
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
        return [self._decode(i) if isinstance(x, str) else _Found(i, x) for i, x in found]

    def _decode(self, index: int) -> "_Found":
        """A picture's pixels [C, H, W], or those of the next that has any."""
        settings = dict(store_size=self.store_size, channels=self.channels)
        for i in range(index, index + TRIES):
            now = i % len(self.source)
            pixels = decoded(lambda now=now: self._read(now), **settings)  # type: ignore[misc]
            if not isinstance(pixels, str):
                return _Found(now, np.ascontiguousarray(pixels.transpose(2, 0, 1)))
            self._note(now, pixels)
        raise self._hopeless()

    def _encoded(self, part: Sequence[int]) -> "list[_Found]":
        return [self._fetch(i) for i in part]

    def _fetch(self, index: int) -> "_Found":
        for i in range(index, index + TRIES):
            now = i % len(self.source)
            try:
                return _Found(now, self._read(now))
            except (OSError, ValueError) as error:
                self._note(now, reason(error))
        raise self._hopeless()

    def _read(self, i: int) -> Encoded:
        """From a run that was expected; others alone, for samples from all over the set."""
        shards = self.shards
        first = shards.run(i)[0] if shards else i
        with self.lock:
            run = self.runs.get(first)
        if run is not None:
            with contextlib.suppress(OSError):  # what failed together may still come alone
                return run.result()[i - first]
        return self.source.read(i)

    def _run(self, first: int, behind: int) -> None:
        """Begin to read neighbours, unless they are being read or were lately."""
        read = self.source.read_run
        assert read is not None
        with self.lock:
            if first not in self.runs:
                self.runs[first] = self.readers.submit(read, first, behind)
            self.runs.move_to_end(first)
            windows = min(LANES * PIECES, WINDOW // self.source.group) // dist.world_size()
            while len(self.runs) > windows * 5 // 4 + 16:
                self.runs.popitem(last=False)

    def _note(self, i: int, why: str) -> None:
        noted = (str(self.names[i]), why)
        with self.lock:
            if len(self.skipped) < NOTED and noted not in self.skipped:
                self.skipped.append(noted)

    def _hopeless(self) -> UserError:
        name, why = self.skipped[-1]
        return UserError(
            f"{TRIES} pictures of {self.source.name} in a row cannot be read; the last is {name}: "
            f"{why}. Check that the data are whole and can be reached."
        )


class _Found:
    """A picture that could be read, and which one it is."""

    __slots__ = ("data", "index")

    def __init__(self, index: int, data: Encoded) -> None:
        self.index, self.data = index, data
