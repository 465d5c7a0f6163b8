"""Decode all images once: into memory, or into a memory-mapped file that later runs load again."""

import contextlib
import hashlib
import io
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int64, Shaped, UInt8
from torch import Tensor

from selfsight import dist
from selfsight.data.cache_eviction import LIMIT_VARIABLE, cache_limit, evict
from selfsight.data.cache_files import (
    INDEX_SUFFIX,
    cache_folder,
    check_owner,
    create_part_file,
    hash_file,
    remove_abandoned,
    remove_any,
)
from selfsight.data.cgroup_limits import free_memory, processes_per_machine
from selfsight.data.dataset_index import POLL
from selfsight.data.decoders.decode_image import VERSION, describe_error
from selfsight.data.decoders.decode_workers import decode_images
from selfsight.data.decoders.npy import MAX_CHANNELS
from selfsight.data.decoders.pillow_formats import heic_readable
from selfsight.data.eval_transform import EvalTransform
from selfsight.data.image_limits import check_regular, max_image_bytes, max_pixels
from selfsight.data.image_store import CachedImages
from selfsight.data.sources.source import Source, digest, select_names
from selfsight.errors import UserError, list_first
from selfsight.terminal.console import format_bytes

DIGEST = 32  # bytes of a SHA-256
SLOW_DECODING = 2.0  # seconds from which on pixels in memory are also written for later runs


def load_images(
    source: Source,
    *,
    store_size: int | None = None,
    transform: EvalTransform | None = None,
    channels: int | None = None,
    dtype: str = "uint8",
    decoder: str = "cpu",
    device: torch.device | str = "cpu",
    workers: int | None = None,
    budget_bytes: int | None = None,
    progress: bool = True,
) -> CachedImages:
    """Decode every image once; unreadable ones are left out and listed in `skipped`.

    The images have a short side of at most `store_size`, or are the crops of `transform`.
    Channels are 3 unless given (sources of decoded pixels keep theirs). Pixels that exceed
    `budget_bytes` (half the free memory unless given) go to a memory-mapped file. Later runs load
    such a file again; if decoding was slow, it is written in any case. Of several processes on a
    machine one decodes, and all map its file.
    """
    if transform is not None:
        channels, dtype = transform.channels, transform.dtype
    channels = resolve_channels(source, channels)
    folder = cache_folder()
    settings: dict[str, Any] = {"store_size": store_size, "channels": channels, "dtype": dtype}
    settings["decoder"] = decoder
    key = cache_key(source, transform=transform, **settings)
    entry, notes = None, source.notes
    try:
        entry = load_entry(folder, key) if key else None
    except DamagedCacheError as error:
        notes = (*notes, str(error))
        if dist.local_rank() == 0:  # the others wait until it is written again
            remove_entry(folder, str(key))
    shared = key is not None and processes_per_machine() > 1
    if entry is None and key is not None and shared and dist.local_rank() > 0:
        entry = _wait_for_entry(folder, key)
    if entry is None:
        budget = free_memory() // 2 if budget_bytes is None else budget_bytes
        began = time.monotonic()
        with CacheWriter(folder, key, 0 if shared else budget) as writer:
            decoded = decode_images(
                source,
                range(len(source)),
                crop=transform.crop if transform else None,
                workers=workers,
                progress=progress,
                **settings,
            )
            for i, pixels in enumerate(decoded):
                if isinstance(pixels, str):
                    writer.skip(source.names[i], pixels)
                else:
                    writer.add(i, pixels)
            _check_any_readable(source, writer.skipped)
            entry = writer.finish(keep=time.monotonic() - began > SLOW_DECODING)
    readable = entry.readable
    all_readable = len(readable) == len(source)
    return CachedImages(
        entry.flat.view(getattr(torch, dtype)),
        torch.from_numpy(entry.heights),
        torch.from_numpy(entry.widths),
        channels=channels,
        names=source.names if all_readable else select_names(source.names, readable),
        labels=None if source.labels is None else torch.from_numpy(source.labels[readable]),
        class_names=source.class_names,
        skipped=entry.skipped,
        readable=readable,
        notes=notes,
    ).to(device)


def cache_key(
    source: Source,
    *,
    store_size: int | None = None,
    transform: EvalTransform | None = None,
    channels: int,
    dtype: str = "uint8",
    decoder: str,
) -> str | None:
    """File name of the cached pixels; None if these images are not cached."""
    if source.fingerprint is None:
        return None
    suffix = "" if decoder == "cpu" else f" {decoder}"
    suffix += "" if dtype == "uint8" else f" {dtype}"
    size = store_size if transform is None else transform.cropping
    # They decide which images can be read: others are skipped, and stay so in the cache.
    limits = f"{max_image_bytes()} {max_pixels()} {heic_readable()}"
    settings = f"{source.name} {size} {channels} {VERSION} {limits}{suffix}"
    return digest([settings, source.fingerprint()])


def resolve_channels(source: Source, channels: int | None) -> int:
    """Channels to decode to: those given, else those of a source of decoded pixels, else 3."""
    if channels is None:
        first = source.read(0) if len(source) and source.fingerprint is None else None
        return first.shape[2] if isinstance(first, np.ndarray) else 3
    if channels > MAX_CHANNELS:
        raise UserError(f"data.channels is {channels}; images have 1 to {MAX_CHANNELS}.")
    return channels


class CacheEntry(NamedTuple):
    """Pixels of all readable images, and which images those are."""

    flat: UInt8[Tensor, " bytes"]
    heights: Int64[np.ndarray, " n"]
    widths: Int64[np.ndarray, " n"]
    readable: Int64[np.ndarray, " n"]
    skipped: list[tuple[str, str]]


class DamagedCacheError(RuntimeError):
    """Cached pixels are not those that were written; the message is a sentence."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"The cached pixels in {path} are damaged ({reason}), so the images are decoded again."
        )


def has_entry(folder: Path, key: str) -> bool:
    """Whether an earlier run has finished writing pixels under this key."""
    return all(os.path.lexists(path) for path in _entry_paths(folder, key))


def load_entry(folder: Path, key: str) -> CacheEntry | None:
    """Map the pixels that an earlier run wrote under this key; None if there are none.

    Raise DamagedCacheError if a byte of them has changed since.
    """
    if not has_entry(folder, key):
        return None
    pixels, index = _entry_paths(folder, key)
    try:
        check_owner(index)
        check_owner(pixels)
        check_regular(str(index))
        saved = _unseal(index.read_bytes())
        heights, widths, readable = (saved[name] for name in ("heights", "widths", "readable"))
        skipped = [(name, reason) for name, reason in json.loads(str(saved["skipped"]))]
        if hash_file(pixels, f"checking {pixels.name}") != str(saved["checksum"]):
            raise ValueError("their checksum does not match")
        with contextlib.suppress(OSError):
            os.utime(pixels)  # mark as recently used
        return CacheEntry(_map_file(pixels), heights, widths, readable, skipped)
    except FileNotFoundError:  # evicted meanwhile
        return None
    except (OSError, ValueError) as error:
        raise DamagedCacheError(pixels, describe_error(error)) from error


def remove_entry(folder: Path, key: str) -> None:
    """Remove what is stored under a key, as far as possible."""
    for path in reversed(_entry_paths(folder, key)):  # without its index an entry does not count
        remove_any(path)


def _seal(arrays: dict[str, np.ndarray]) -> bytes:
    """The arrays as a file that ends with its own checksum."""
    out = io.BytesIO()
    np.savez(out, **arrays)  # type: ignore[arg-type]
    return out.getvalue() + hashlib.sha256(out.getvalue()).digest()


def _unseal(data: bytes) -> dict[str, np.ndarray]:
    content, written = data[:-DIGEST], data[-DIGEST:]
    if hashlib.sha256(content).digest() != written:
        raise ValueError("the checksum of their index does not match")
    with np.load(io.BytesIO(content)) as saved:
        return dict(saved)


class CacheWriter:
    """Collects images one by one; beyond `budget` bytes it writes them to a file.

    With a key the file is left for later runs; without one it is removed when this run ends.
    """

    def __init__(self, folder: Path, key: str | None, budget: int) -> None:
        self.folder, self.key, self.budget = folder, key, budget
        self.in_memory: list[np.ndarray] = []
        self.sizes: list[tuple[int, int]] = []
        self.readable: list[int] = []
        self.skipped: list[tuple[str, str]] = []
        self.total = 0
        self.file: IO[bytes] | None = None
        self.unfinished: list[Path] = []

    def __enter__(self) -> "CacheWriter":
        return self

    def __exit__(self, *_: object) -> None:
        if self.file is not None:
            with contextlib.suppress(OSError):  # closing a file on a full disk flushes once more
                self.file.close()
        for path in self.unfinished:
            path.unlink(missing_ok=True)

    def skip(self, name: str, reason: str) -> None:
        """Record an image that cannot be read."""
        self.skipped.append((name, reason))

    def add(self, index: int, pixels: Shaped[np.ndarray, "c h w"]) -> None:
        """Add the next image."""
        self.readable.append(index)
        self.sizes.append((pixels.shape[1], pixels.shape[2]))
        self.total += pixels.nbytes
        if self.file is None and self.total > self.budget:
            self._move_to_file()
        if self.file is None:
            self.in_memory.append(pixels)
        else:
            self._write(pixels)

    def finish(self, *, keep: bool = False) -> CacheEntry:
        """Return all images, from memory or mapped from the file.

        With `keep`, pixels in memory are also left for later runs, if they can be written.
        """
        heights, widths = np.array(self.sizes, dtype=np.int64).reshape(-1, 2).T.copy()
        readable = np.array(self.readable, dtype=np.int64)
        arrays = {"heights": heights, "widths": widths, "readable": readable}
        if self.file is None:
            flat = torch.from_numpy(self._concatenate())
            if keep and self.key is not None and self.total <= cache_limit():
                with contextlib.suppress(OSError):  # later runs decode again
                    self._open_file().write(flat.numpy().data)
                    self._publish(self.key, arrays)
            return CacheEntry(flat, **arrays, skipped=self.skipped)
        with self._explain_errors():
            self.file.flush()
            pixels = self.unfinished[0]  # without a key, the mapping outlives its name
            if self.key is not None:
                pixels = self._publish(self.key, arrays)
        return CacheEntry(_map_file(pixels), **arrays, skipped=self.skipped)

    def _publish(self, key: str, arrays: dict[str, np.ndarray]) -> Path:
        """Write the index and give both files their final names; returns that of the pixels."""
        assert self.file is not None
        self.file.flush()
        if has_entry(self.folder, key):  # of another machine, whose processes have mapped it
            return _entry_paths(self.folder, key)[0]
        evict(self.folder, self.total)
        texts = {"skipped": json.dumps(self.skipped), "checksum": hash_file(self.unfinished[0])}
        with self._create_file() as index:  # locked while it is open, so that no run removes it
            index.write(_seal(arrays | {name: np.array(text) for name, text in texts.items()}))
            index.flush()
            # The index comes last: without it the pixels do not count.
            for written, path in zip(self.unfinished, _entry_paths(self.folder, key), strict=True):
                os.replace(written, path)
        return _entry_paths(self.folder, key)[0]

    def _concatenate(self) -> np.ndarray:
        flat = np.empty(self.total, dtype=np.uint8)
        at = 0
        self.in_memory.reverse()
        while self.in_memory:  # free each as it is copied: memory cannot hold all of them twice
            pixels = self.in_memory.pop()
            flat[at : at + pixels.nbytes] = pixels.reshape(-1).view(np.uint8)
            at += pixels.nbytes
        return flat

    def _create_file(self) -> IO[bytes]:
        """Create a file that is removed with this writer unless it gets its final name."""
        file = create_part_file(self.folder, self.key)
        self.unfinished.append(Path(file.name))
        return file

    def _open_file(self) -> IO[bytes]:
        """Create the file of the pixels."""
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_abandoned(self.folder)
        self.file = self._create_file()
        return self.file

    def _move_to_file(self) -> None:
        with self._explain_errors():
            self._open_file()
        for pixels in self.in_memory:
            self._write(pixels)
        self.in_memory = []

    def _write(self, pixels: np.ndarray) -> None:
        assert self.file is not None
        if self.total > cache_limit():
            raise UserError(
                f"The decoded images take more than the {format_bytes(cache_limit())} that the "
                f"cache in {self.folder} may take. Raise {LIMIT_VARIABLE}, lower data.store_size, "
                "or use --data.storage stream."
            )
        with self._explain_errors():
            self.file.write(pixels.data)

    @contextlib.contextmanager
    def _explain_errors(self) -> Iterator[None]:
        """Turn an OSError into a UserError."""
        try:
            yield
        except OSError as error:
            raise UserError(
                "The decoded images do not fit in memory, and writing them to "
                f"{self.folder} failed after {format_bytes(self.total)}: {error.strerror}. Free "
                "some space, set XDG_CACHE_HOME to a larger disk, lower data.store_size, or use "
                "--data.storage stream."
            ) from error


def _entry_paths(folder: Path, key: str) -> tuple[Path, Path]:
    return folder / f"{key}.pixels", folder / f"{key}{INDEX_SUFFIX}"


def _map_file(path: Path) -> Tensor:
    """Map a file copy-on-write: pages are read as they are used, and the file never changes."""
    return torch.from_file(str(path), shared=False, size=path.stat().st_size, dtype=torch.uint8)


def _wait_for_entry(folder: Path, key: str) -> CacheEntry:
    """Wait for the first process of this machine; if it fails, torchrun ends this one too."""
    while True:
        with contextlib.suppress(DamagedCacheError):  # until that process has removed it
            if (entry := load_entry(folder, key)) is not None:
                return entry
        time.sleep(POLL)


def _check_any_readable(source: Source, skipped: list[tuple[str, str]]) -> None:
    if not len(source):
        raise UserError(f"{source.name} has no images.")
    if len(skipped) < len(source):
        return
    reasons = list_first([f"{name} ({reason})" for name, reason in skipped], 3)
    raise UserError(
        f"All {len(source)} images of {source.name} are unreadable: {reasons}. Are the files "
        "complete? Open one in an image viewer."
    )
