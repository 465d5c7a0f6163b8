"""Decode a whole source once: into memory, or into a mapped file that later runs find again."""

import os
import time
from pathlib import Path

import numpy as np
import torch

from selfsight import dist
from selfsight.data.decode import MODES, VERSION
from selfsight.data.decode_in_order import decoded_in_order
from selfsight.data.image_store import Images
from selfsight.data.pixel_cache import Store, Stored, default_folder, free_memory, open_stored
from selfsight.data.source import Chosen, Source, digest, listed
from selfsight.errors import UserError

POLL = 0.2  # seconds between looks whether another process has finished


def load(
    source: Source,
    *,
    store_size: int,
    channels: int | None = None,
    decoder: str = "cpu",
    device: torch.device | str = "cpu",
    workers: int | None = None,
    budget_bytes: int | None = None,
    cache_dir: str | Path | None = None,
    progress: bool = True,
) -> Images:
    """Decode every image once; those that cannot be read are left out and named in `skipped`.

    Channels are 3 unless given (pixels that come decoded keep their own). What outgrows
    `budget_bytes` (half the free memory unless given) goes to a mapped file for the next run too;
    of several processes on a machine one decodes, and all map its file.
    """
    channels = channels_of(source, channels)
    folder = Path(cache_dir) if cache_dir else default_folder()
    key = key_of(source, store_size=store_size, channels=channels, decoder=decoder)
    stored = open_stored(folder, key) if key else None
    shared = key is not None and int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1
    if stored is None and key is not None and shared and dist.local_rank() > 0:
        stored = _awaited(folder, key)
    if stored is None:
        budget = free_memory() // 2 if budget_bytes is None else budget_bytes
        with Store(folder, key, 0 if shared else budget) as store:
            order = decoded_in_order(
                source,
                range(len(source)),
                store_size=store_size,
                channels=channels,
                decoder=decoder,
                workers=workers,
                progress=progress,
            )
            for i, one in enumerate(order):
                if isinstance(one, str):
                    store.skip(source.names[i], one)
                else:
                    store.add(i, one.transpose(2, 0, 1))
            _refuse_nothing(source, store.skipped)
            stored = store.finish()
    kept = stored.kept
    whole = len(kept) == len(source)
    return Images(
        stored.flat,
        torch.from_numpy(stored.heights),
        torch.from_numpy(stored.widths),
        channels=channels,
        names=source.names if whole else Chosen(source.names, kept),
        labels=None if source.labels is None else torch.from_numpy(source.labels[kept]),
        class_names=source.class_names,
        skipped=stored.skipped,
        notes=source.notes,
    ).to(device)


def key_of(source: Source, *, store_size: int, channels: int, decoder: str) -> str | None:
    """What the file of decoded pixels is called; None if these images are not cached."""
    if source.stamp is None:
        return None
    # Pixels of the CPU's decoder have always been called so; others add a word.
    other = "" if decoder == "cpu" else f" {decoder}"
    settings = f"{source.name} {store_size} {channels} {VERSION}{other}"
    return digest([settings, source.stamp()])


def channels_of(source: Source, channels: int | None) -> int:
    """Channels to decode to: those asked for, else those of pixels that come decoded, else 3."""
    if channels is None:
        first = source.read(0) if len(source) and source.stamp is None else None
        return first.shape[2] if isinstance(first, np.ndarray) else 3
    if channels not in MODES:
        raise UserError(
            f"data.channels is {channels}; image files give 1 (gray), 3 (color) or 4 (color "
            "and transparency)."
        )
    return channels


def _awaited(folder: Path, key: str) -> Stored:
    """What the first process of this machine writes; if it fails, the launcher ends us all."""
    while (stored := open_stored(folder, key)) is None:
        time.sleep(POLL)
    return stored


def _refuse_nothing(source: Source, skipped: list[tuple[str, str]]) -> None:
    if len(skipped) < len(source):
        return
    reasons = listed([f"{name} ({why})" for name, why in skipped], 3)
    found = f"All {len(source)} images of {source.name} are unreadable: {reasons}."
    hint = "Are the files complete? Open one in an image viewer."
    raise UserError(f"{found} {hint}" if len(source) else f"{source.name} has no images.")
