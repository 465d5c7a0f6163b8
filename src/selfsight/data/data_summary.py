"""Summarize a data set from a sample of its images."""

import hashlib
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.nn.functional as F

from selfsight import rng
from selfsight.data import Source, open_source
from selfsight.data.cgroup_limits import available_cpus, free_memory
from selfsight.data.decoders.decode_image import Header, decode, describe_error, read_header
from selfsight.data.decoders.pillow_formats import pillow_warnings_ignored
from selfsight.data.decoders.resize_to_store import stored_size
from selfsight.data.decoders.scientific_images import SampleFormat
from selfsight.data.pixel_statistics import (
    THUMBNAIL,
    PixelKind,
    SampledPixels,
    choose_kind,
    has_mirror_images,
    sample_pixels,
    summarize_kind,
)
from selfsight.data.storage_plan import MAX_GPU_SHARE
from selfsight.errors import count_noun, list_first
from selfsight.terminal.console import is_verbose

STORE_SIZE = 256  # short side in pixels for the estimates of speed and memory
NO_HEADER = Header(0, 0, "")


@dataclass(frozen=True, kw_only=True)
class DataSummary:
    """Sizes, formats, problems and speed of a sample of images."""

    data: str
    count: int
    sampled: int
    smallest: tuple[int, int]  # width, height
    median: tuple[int, int]
    largest: tuple[int, int]
    short_side: int  # median
    channels: int  # of photographs: 1 if every image is gray, else 3
    kind: PixelKind | None  # type and statistics of images that are not photographs
    mirrored: bool  # the mirror image of one could be another; known of photographs only
    modes: dict[str, int]
    unreadable: tuple[tuple[str, str], ...]  # name and reason
    duplicates: tuple[tuple[str, str], ...]  # names of exactly equal files
    classes: int  # 0 without labels
    decoded_per_second: float
    bytes_in_memory: int  # of all images, at the stored size
    fits_in_memory: bool
    fits_on_device: bool | None  # None without a GPU
    notes: tuple[str, ...] = ()  # what was noticed when the data were opened


def inspect_data(data: str | Path | Source, *, sample: int = 512) -> DataSummary:
    """Read a random sample and summarize it."""
    source = data if isinstance(data, Source) else open_source(data)
    position = torch.arange(min(sample, len(source)))
    index = rng.shuffled(rng.key(0, "doctor"), len(source), position).sort().values.tolist()
    started = time.perf_counter()
    with pillow_warnings_ignored(), ThreadPoolExecutor(available_cpus()) as pool:
        images = list(pool.map(lambda i: _read_image(source, i), index))
    seconds = time.perf_counter() - started
    good = [image for image in images if image.reason is None]
    names: dict[str, str] = {}
    duplicates = []
    for image in images:
        if image.digest in names:
            duplicates.append((names[image.digest], image.name))
        elif image.digest:
            names[image.digest] = image.name
    sizes = sorted((image.header[:2] for image in good), key=lambda s: s[0] * s[1])
    modes = Counter(image.header.mode for image in good)
    stored = sum(image.stored for image in good) / max(1, len(good)) * len(source)
    free = torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else None
    kind, kind_note = _find_kind(good)
    photo_channels = 1 if good and all(image.header.is_gray for image in good) else 3
    return DataSummary(
        data=source.name,
        count=len(source),
        sampled=len(index),
        smallest=sizes[0] if sizes else (0, 0),
        median=sizes[len(sizes) // 2] if sizes else (0, 0),
        largest=sizes[-1] if sizes else (0, 0),
        short_side=int(median(min(s) for s in sizes)) if sizes else 0,
        channels=photo_channels if kind is None else kind.channels,
        kind=kind,
        mirrored=has_mirror_images([i.thumbnail for i in good if i.thumbnail is not None]),
        modes=dict(modes.most_common()),
        unreadable=tuple(
            (image.name, image.reason) for image in images if image.reason is not None
        ),
        duplicates=tuple(duplicates),
        classes=len(source.class_names),
        decoded_per_second=round(len(images) / seconds, 1),
        bytes_in_memory=int(stored),
        fits_in_memory=stored < free_memory() / 2,
        fits_on_device=None if free is None else stored <= MAX_GPU_SHARE * free,
        notes=(*source.notes, *([kind_note] if kind_note else [])),
    )


def _find_kind(good: Sequence["_SampledImage"]) -> tuple[PixelKind | None, str]:
    """The kind of most images, None for photographs; and a sentence on the others."""
    chosen, note = choose_kind([image.header.samples for image in good])
    same = [
        image.pixels
        for image in good
        if image.pixels and (image.pixels.samples.channels, image.pixels.samples.dtype) == chosen
    ]
    return (summarize_kind(same) if same else None), note


def describe(summary: DataSummary) -> list[str]:
    """Describe a summary in sentences, one per line."""
    modes = ", ".join(f"{count} {mode}" for mode, count in summary.modes.items())
    sizes = (summary.smallest, summary.largest, summary.median)
    smallest, largest, middle = (f"{width}x{height}" for width, height in sizes)
    unreadable = [f"{name} ({why})" for name, why in summary.unreadable]
    lines = [
        f"{summary.data}: {summary.count:,} images"
        + (f" of {summary.classes} classes" if summary.classes else ", no labels"),
        f"Read {summary.sampled} of them: {smallest} to {largest} pixels, "
        f"median {middle}; {modes}.",
        f"Decoding {summary.decoded_per_second:,.0f} images/s; all of them take "
        f"{summary.bytes_in_memory / 2**20:,.0f} MiB at {STORE_SIZE} px, which "
        f"{'fits' if summary.fits_in_memory else 'does not fit'} in memory"
        + (
            "."
            if summary.fits_on_device is None
            else f" and {'fits' if summary.fits_on_device else 'does not fit'} on the GPU."
        ),
        *_describe_kind(summary.kind),
        _describe_list("unreadable image", unreadable),
        _describe_list("exact duplicate", [f"{a} = {b}" for a, b in summary.duplicates]),
    ]
    return [*lines, *summary.notes]


@dataclass(frozen=True, kw_only=True)
class _SampledImage:
    name: str
    digest: str = ""
    header: Header = NO_HEADER
    stored: int = 0
    thumbnail: np.ndarray | None = None  # gray, of a photograph
    pixels: SampledPixels | None = None  # of an image that is not a photograph
    reason: str | None = None


def _read_image(source: Source, i: int) -> _SampledImage:
    name = str(source.names[i])
    try:
        data = source.read(i)
        digest = hashlib.sha256(data if isinstance(data, bytes) else data.tobytes()).hexdigest()
        header = read_header(data)
        samples = header.samples
        if samples is not None:
            return _read_samples(name, digest, data, header, samples)
        channels = 1 if header.is_gray else 3
        pixels = decode(data, store_size=STORE_SIZE, channels=channels)
    except (OSError, ValueError) as error:
        return _SampledImage(name=name, reason=describe_error(error))
    gray = torch.from_numpy(pixels.mean(axis=2, dtype=np.float32))[None]
    return _SampledImage(
        name=name,
        digest=digest,
        header=header,
        stored=int(pixels.size),
        thumbnail=F.adaptive_avg_pool2d(gray, THUMBNAIL)[0].numpy(),
    )


def _read_samples(
    name: str, digest: str, data: bytes | np.ndarray, header: Header, samples: SampleFormat
) -> _SampledImage:
    """Decode an image that is not a photograph; its statistics are those of its full size."""
    kind = {"channels": samples.channels, "dtype": samples.dtype}
    pixels = decode(data, store_size=None, **kind)  # type: ignore[arg-type]
    width, height = stored_size((samples.width, samples.height), STORE_SIZE)
    return _SampledImage(
        name=name,
        digest=digest,
        header=header,
        stored=width * height * samples.channels * pixels.itemsize,
        pixels=sample_pixels(samples, pixels),
    )


def _describe_kind(kind: PixelKind | None) -> list[str]:
    if kind is None:
        return []
    pairs = zip(kind.low, kind.high, strict=True)
    ends = ", ".join(f"{low:.4g} to {high:.4g}" for low, high in pairs)
    sides = "have an orientation" if kind.has_up else "have no orientation"
    return [f"Not photographs: {kind.name}; values by channel {ends}; they {sides}."]


def _describe_list(noun: str, items: list[str]) -> str:
    if not items:
        return f"The sample has no {noun}s."
    return (
        f"{count_noun(len(items), noun)}: {list_first(items, len(items) if is_verbose() else 5)}."
    )
