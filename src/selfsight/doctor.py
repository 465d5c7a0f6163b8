"""What is in the data, read off a sample of it."""

import hashlib
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from selfsight import rng
from selfsight.data import Source, open_source
from selfsight.data.cgroup_limits import available_cpus, free_memory
from selfsight.data.decode import (
    Header,
    UnreadableError,
    decode,
    pillow_warnings_ignored,
    read_header,
)
from selfsight.data.storage import MAX_GPU_SHARE

STORE = 256  # short side at which speed and memory are told
NOTHING = Header(0, 0, "")


@dataclass(frozen=True, kw_only=True)
class DataSummary:
    """What a sample of the images shows."""

    data: str
    count: int
    sampled: int
    smallest: tuple[int, int]  # width, height
    median: tuple[int, int]
    largest: tuple[int, int]
    short_side: int  # median
    channels: int  # 1 if every image is gray, else 3
    modes: dict[str, int]
    unreadable: tuple[tuple[str, str], ...]  # name and reason
    duplicates: tuple[tuple[str, str], ...]  # names of exactly equal files
    classes: int  # 0 without labels
    decoded_per_second: float
    bytes_in_memory: int  # of all images, at the stored size
    fits_in_memory: bool
    fits_on_device: bool | None  # None without a GPU


def inspect_data(data: str | Path | Source, *, sample: int = 512, seed: int = 0) -> DataSummary:
    """Read a random sample and tell what is in it."""
    source = data if isinstance(data, Source) else open_source(data)
    chosen = _sample(source, sample, seed)
    begun = time.perf_counter()
    with pillow_warnings_ignored(), ThreadPoolExecutor(available_cpus()) as pool:
        looks = list(pool.map(lambda i: _look(source, i), chosen))
    seconds = time.perf_counter() - begun
    good = [look for look in looks if look.reason is None]
    names: dict[str, str] = {}
    doubles = []
    for look in looks:
        if look.digest in names:
            doubles.append((names[look.digest], look.name))
        elif look.digest:
            names[look.digest] = look.name
    sizes = sorted((look.header[:2] for look in good), key=lambda s: s[0] * s[1])
    modes = Counter(look.header.mode for look in good)
    stored = sum(look.stored for look in good) / max(1, len(good)) * len(source)
    free = torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else None
    return DataSummary(
        data=source.name,
        count=len(source),
        sampled=len(chosen),
        smallest=sizes[0] if sizes else (0, 0),
        median=sizes[len(sizes) // 2] if sizes else (0, 0),
        largest=sizes[-1] if sizes else (0, 0),
        short_side=int(median(min(s) for s in sizes)) if sizes else 0,
        channels=1 if good and all(look.header.is_gray for look in good) else 3,
        modes=dict(modes.most_common()),
        unreadable=tuple((look.name, look.reason) for look in looks if look.reason is not None),
        duplicates=tuple(doubles),
        classes=len(source.class_names),
        decoded_per_second=round(len(looks) / seconds, 1),
        bytes_in_memory=int(stored),
        fits_in_memory=stored < free_memory() / 2,
        fits_on_device=None if free is None else stored <= MAX_GPU_SHARE * free,
    )


def describe(found: DataSummary) -> str:
    """The examination in sentences."""
    modes = ", ".join(f"{count} {mode}" for mode, count in found.modes.items())
    lines = [
        f"{found.data}: {found.count:,} images"
        + (f" of {found.classes} classes" if found.classes else ", no labels"),
        f"Read {found.sampled} of them: {_by(found.smallest)} to {_by(found.largest)} pixels, "
        f"median {_by(found.median)}; {modes}.",
        f"Decoding {found.decoded_per_second:,.0f} images/s; all of them take "
        f"{found.bytes_in_memory / 2**20:,.0f} MiB at {STORE} px, which "
        f"{'fits' if found.fits_in_memory else 'does not fit'} in memory"
        + (
            "."
            if found.fits_on_device is None
            else f" and {'fits' if found.fits_on_device else 'does not fit'} on the GPU."
        ),
        _listed("unreadable images", [f"{name} ({why})" for name, why in found.unreadable]),
        _listed("exact duplicates", [f"{a} = {b}" for a, b in found.duplicates]),
    ]
    return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class _Look:
    name: str
    digest: str = ""
    header: Header = NOTHING
    stored: int = 0
    reason: str | None = None


def _look(source: Source, i: int) -> _Look:
    name = str(source.names[i])
    try:
        data = source.read(i)
        digest = hashlib.sha256(data if isinstance(data, bytes) else data.tobytes()).hexdigest()
        told = read_header(data)
        channels = 1 if told.is_gray else 3
        stored = decode(data, store_size=STORE, channels=channels).size
    except FileNotFoundError:
        return _Look(name=name, reason="there is no such file")
    except (UnreadableError, OSError) as error:
        return _Look(name=name, reason=str(error))
    return _Look(name=name, digest=digest, header=told, stored=int(stored))


def _sample(source: Source, count: int, seed: int) -> list[int]:
    position = torch.arange(min(count, len(source)))
    chosen = rng.shuffled(rng.key(seed, "doctor"), len(source), position)
    return sorted(chosen.tolist())  # Parquet is read in row order


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"


def _listed(what: str, items: list[str]) -> str:
    if not items:
        return f"The sample has no {what}."
    more = f" and {len(items) - 5} more" if len(items) > 5 else ""
    return f"{len(items)} {what}: {', '.join(items[:5])}{more}."
