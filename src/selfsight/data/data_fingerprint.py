"""A fingerprint of the images of a run, to notice changed images."""

import hashlib
import os
from collections.abc import Iterator

import numpy as np
import torch

from selfsight import rng
from selfsight.data.sources.source import Source, digest

MAX_LISTED = 2_000_000  # names and sizes; of more images every second, third, ... is listed
SAMPLE_LOCAL, SAMPLE_REMOTE = 256, 32  # images whose bytes are read


def fingerprint_data(source: Source) -> dict[str, str | int]:
    """Hash the images' names, their sizes if each is a file, and the bytes of a sample.

    Times and folders are left out, so that a copy of the images has the same fingerprint.
    """
    listed = range(0, len(source), -(-len(source) // MAX_LISTED) or 1)
    fingerprint: dict[str, str | int] = {
        "images": len(source),
        "names": digest(source.names[i] for i in listed),
        "bytes": hash_sample(source),
    }
    if source.local_path is not None:
        fingerprint["sizes"] = digest(_sizes(source, listed))
    return fingerprint


def compare_fingerprints(saved: dict[str, str | int], now: dict[str, str | int]) -> str | None:
    """Describe what differs; None if nothing does, or if there is nothing to compare."""
    if not saved:
        return None
    if saved.get("images") != now["images"]:
        return f"{now['images']} images instead of {saved.get('images')}"
    differing = [part for part in ("names", "sizes", "bytes") if saved.get(part) != now.get(part)]
    return f"the {' and '.join(differing)} of the images differ" if differing else None


def _sizes(source: Source, listed: range) -> Iterator[str]:
    assert source.local_path is not None
    for i in listed:
        try:
            yield str(os.stat(source.local_path(i)).st_size)
        except OSError:
            yield "missing"


def hash_sample(source: Source) -> str:
    """Hash the bytes of some of the images."""
    count = SAMPLE_LOCAL if source.local_path is not None else SAMPLE_REMOTE
    position = torch.arange(min(count, len(source)))
    total = hashlib.blake2b(digest_size=12)
    for i in rng.shuffled(rng.key(0, "fingerprint"), len(source), position).sort().values.tolist():
        try:
            image = source.read(i)
        except (OSError, ValueError):
            image = b"unreadable"
        total.update(image.tobytes() if isinstance(image, np.ndarray) else image)
    return total.hexdigest()
