"""Where decoded images are kept (GPU, memory, disk, or a stream) and which decoder reads them.

`plan_storage` chooses, with reasons; `open_images` opens the images accordingly.
"""

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from selfsight import dist, rng
from selfsight.check_settings import check_settings
from selfsight.data.cache_eviction import free_disk
from selfsight.data.cache_files import cache_folder
from selfsight.data.cgroup_limits import cpus_per_process, free_memory, processes_per_machine
from selfsight.data.decoders.decode_image import Encoded, read_header
from selfsight.data.decoders.jpeg import read_jpeg_header
from selfsight.data.decoders.resize_to_store import stored_size
from selfsight.data.decoders.scientific_images import is_photo
from selfsight.data.image_limits import UnreadableError
from selfsight.data.image_store import CachedImages, ImageStore
from selfsight.data.pixel_cache import cache_key, has_entry, load_images, resolve_channels
from selfsight.data.sources.source import Source
from selfsight.data.stream import StreamedImages
from selfsight.errors import UserError
from selfsight.terminal.console import format_bytes

Storage = Literal["auto", "cache", "stream"]
Decoder = Literal["auto", "cpu", "nvjpeg"]
STORAGES: tuple[Storage, ...] = ("auto", "cache", "stream")
DECODERS: tuple[Decoder, ...] = ("auto", "cpu", "nvjpeg")
ENOUGH_CPUS = 8  # with fewer, nvJPEG trains from a stream at least 1.3 times as fast
MAX_GPU_SHARE = 0.5  # of a GPU's free memory that cached pixels may take
MAX_ESTIMATE_ERROR = 4  # by how many times all images may be smaller than the sample says
SAMPLE = 64  # images from which sizes and formats are estimated
SAMPLE_RANGES = 4  # ranges of neighbors in the sample, where neighbors are read at once


@dataclass(frozen=True, kw_only=True)
class StorageSettings:
    """How images are stored and decoded; `plan_storage` replaces "auto"."""

    storage: Storage = "auto"
    decoder: Decoder = "auto"
    store_size: int  # short side
    channels: int | None = None  # None: those of the images
    dtype: str = "uint8"

    def __post_init__(self) -> None:
        check_settings(self, "data.")

    def pixels(self, source: Source) -> dict[str, Any]:
        """What decides the stored pixels of these images."""
        channels = resolve_channels(source, self.channels)
        return {"store_size": self.store_size, "channels": channels, "dtype": self.dtype}


class StoragePlan(NamedTuple):
    """The chosen storage and decoder, and the reasons by setting."""

    storage: Storage
    decoder: Decoder
    reasons: dict[str, str]


def plan_storage(
    source: Source, settings: StorageSettings, device: torch.device | str = "cpu"
) -> StoragePlan:
    """Replace "auto" by what suits these images and this machine; all processes agree."""
    storage, decoder, dtype = settings.storage, settings.decoder, settings.dtype
    device = torch.device(device)
    if decoder == "nvjpeg" and not is_photo(settings.channels or 3, dtype):
        raise UserError(
            f"data.decoder is nvjpeg, but the images are {dtype} of {settings.channels} channels, "
            "which are no JPEG files. Use --data.decoder cpu, or auto."
        )
    if decoder == "nvjpeg" and device.type != "cuda":
        raise UserError(
            "data.decoder is nvjpeg, which runs on a CUDA device, and this run is on the "
            f"{device.type.upper()}. Use --data.decoder cpu, or auto."
        )
    if "auto" not in (storage, decoder):
        return StoragePlan(storage, decoder, {})
    plan = StoragePlan("cache", "cpu", {})
    if dist.rank() == 0:
        plan = _choose(source, storage, decoder, **settings.pixels(source), device=device)
    choice = torch.tensor(
        [STORAGES.index(plan.storage), DECODERS.index(plan.decoder)], device=device
    )
    first, second = dist.all_sum(choice if dist.rank() == 0 else choice * 0).tolist()
    return StoragePlan(STORAGES[first], DECODERS[second], plan.reasons)


def foresee_cache(source: Source, settings: StorageSettings) -> int:
    """Estimate how many bytes opening these images will write to the cache folder; often 0."""
    pixels = settings.pixels(source)
    key = cache_key(source, **pixels, decoder=settings.decoder)
    if settings.storage != "cache" or key is None or has_entry(cache_folder(), key):
        return 0
    total = _mean_stored_bytes(read_sample(source), **pixels) * len(source)
    is_shared = processes_per_machine() > 1  # all map the file that one of them writes
    return total if is_shared or total > free_memory() // 2 else 0


def open_images(source: Source, settings: StorageSettings, device: torch.device) -> ImageStore:
    """Open the images as planned; cached pixels are copied to the device if they fit."""
    pixels = settings.pixels(source) | {"decoder": settings.decoder}
    if settings.storage == "stream":
        return StreamedImages(source, **pixels, device=device)
    return move_if_fits(load_images(source, **pixels), device)


def move_if_fits(images: CachedImages, device: torch.device) -> CachedImages:
    """Copy the images to a GPU if that leaves enough of its memory for training."""
    if device.type != "cuda":
        return images
    free, _ = torch.cuda.mem_get_info(device)
    return images.to(device) if images.num_bytes <= MAX_GPU_SHARE * free else images


def _choose(
    source: Source,
    storage: Storage,
    decoder: Decoder,
    store_size: int,
    channels: int,
    dtype: str,
    device: torch.device,
) -> StoragePlan:
    settings: dict[str, Any] = {"store_size": store_size, "channels": channels, "dtype": dtype}
    folder = cache_folder()
    if source.fingerprint is None:  # generated images
        return StoragePlan("cache" if storage == "auto" else storage, "cpu", {})
    files = read_sample(source)
    total = _mean_stored_bytes(files, **settings) * len(source)
    # A key needs the size and time of every file: a minute and more for ten million.
    may_be_cached = storage != "stream" and _largest_entry(folder) >= total // MAX_ESTIMATE_ERROR
    for candidate in DECODERS[1:] if may_be_cached else ():
        if decoder not in ("auto", candidate) or (candidate != "cpu" and device.type != "cuda"):
            continue
        key = cache_key(source, **settings, decoder=candidate)
        if key and has_entry(folder, key):
            return StoragePlan("cache", candidate, {"data.storage": "Decoded by an earlier run."})
    reasons = {}
    if storage == "auto":
        # Several processes share a file that one of them writes.
        memory = 0 if processes_per_machine() > 1 else free_memory() // 2
        disk = free_disk(folder)
        storage = "cache" if total <= max(memory, disk) else "stream"
        where = "memory" if total <= memory else "the cache" if total <= disk else ""
        reasons["data.storage"] = f"All decoded images take {format_bytes(total)}" + (
            f", which fits in {where}." if where else ": too much for memory and cache."
        )
    if decoder == "auto":
        decoder, reason = "cpu", ""
        if is_photo(channels, dtype):
            cpus = cpus_per_process()
            decoder, reason = choose_decoder(files, storage, channels, device, cpus)
        reasons |= {"data.decoder": reason} if reason else {}
    return StoragePlan(storage, decoder, reasons)


def _largest_entry(folder: Path) -> int:
    """Bytes of the largest pixels in the cache; 0 without any."""
    largest = 0
    for path in folder.glob("*.pixels"):
        with contextlib.suppress(OSError):  # evicted meanwhile
            largest = max(largest, path.stat().st_size)
    return largest


def choose_decoder(
    files: list[Encoded], storage: Storage, channels: int, device: torch.device, cpus: int
) -> tuple[Decoder, str]:
    """Choose nvJPEG for streams of JPEG files to a GPU if there are few CPUs; also give the reason.

    While a ResNet-50 trains on an H200, nvJPEG decodes about 3,100 files of 500 x 375 a second,
    and the CPU about 320 per core. A cache is filled once, so the exact pixels of the CPU matter
    more than the speed.
    """
    jpegs = [file for file in files if isinstance(file, bytes) and read_jpeg_header(file)]
    mostly_jpeg = len(jpegs) > 0 and 2 * len(jpegs) >= len(files)
    if storage != "stream" or device.type != "cuda" or channels == 4 or not mostly_jpeg:
        return "cpu", ""
    if cpus >= ENOUGH_CPUS:
        return "cpu", f"{cpus} CPU cores decode about as fast as nvJPEG during training."
    return "nvjpeg", f"{cpus} CPU core(s) decode more slowly than nvJPEG during training."


def read_sample(source: Source, count: int = SAMPLE) -> list[Encoded]:
    """Read some images without decoding them; the same ones every time."""
    key, n, images = rng.key(0, "sample"), len(source), []
    ranges = SAMPLE_RANGES if source.read_range else count
    starts = rng.shuffled(key, n, torch.arange(min(ranges, n))).sort().values.tolist()
    for first in starts:
        for i in range(first, min(first + max(1, count // ranges), n)):
            try:
                images.append(source.read(i))
            except (OSError, ValueError):
                continue
    return images


def _mean_stored_bytes(files: list[Encoded], store_size: int, channels: int, dtype: str) -> int:
    """Mean size of a decoded image."""
    sizes = []
    for file in files:
        try:
            header = read_header(file)
        except UnreadableError:
            continue
        width, height = stored_size((header.width, header.height), store_size)
        sizes.append(channels * width * height)
    mean = int(np.mean(sizes)) if sizes else channels * store_size**2
    return mean * np.dtype(dtype).itemsize
