"""The decoded pixels of a whole source, in memory or in a mapped file."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from sightline.data.cache import Store, default_folder, open_stored
from sightline.data.decode import MODES, VERSION
from sightline.data.source import Source, digest, listed
from sightline.data.threads import decoded_in_order
from sightline.errors import UserError


class Pictures:
    """Pixels of pictures of any sizes, one after the other, each as [C, H, W]."""

    def __init__(
        self,
        flat: UInt8[Tensor, " bytes"],
        heights: Int64[Tensor, " n"],
        widths: Int64[Tensor, " n"],
        *,
        channels: int,
        names: Sequence[str],
        labels: Int64[Tensor, " n"] | None = None,
        class_names: tuple[str, ...] = (),
        skipped: Sequence[tuple[str, str]] = (),
        notes: tuple[str, ...] = (),
    ) -> None:
        self.flat, self.heights, self.widths = flat, heights, widths
        self.channels, self.names, self.labels = channels, names, labels
        self.class_names, self.skipped, self.notes = class_names, list(skipped), notes
        self.starts = (channels * heights * widths).cumsum(0) - channels * heights * widths
        same = bool((heights == heights[0]).all() and (widths == widths[0]).all())
        self.dense = (
            flat.view(len(names), channels, int(heights[0]), int(widths[0])) if same else None
        )

    def __len__(self) -> int:
        return len(self.names)

    @property
    def device(self) -> torch.device:
        """Where the pixels are."""
        return self.flat.device

    @property
    def bytes(self) -> int:
        """What the pixels take."""
        return self.flat.numel()

    def to(self, device: torch.device | str) -> "Pictures":
        """The same pictures on another device."""
        return Pictures(
            self.flat.to(device),
            self.heights.to(device),
            self.widths.to(device),
            channels=self.channels,
            names=self.names,
            labels=None if self.labels is None else self.labels.to(device),
            class_names=self.class_names,
            skipped=self.skipped,
            notes=self.notes,
        )

    def batch(
        self, index: Int64[Tensor, " b"]
    ) -> tuple[UInt8[Tensor, "b c h w"], Int64[Tensor, "b 2"]]:
        """Pixels, padded with zeros to the largest, and each picture's own height and width."""
        index = index.to(self.device)
        sizes = torch.stack([self.heights[index], self.widths[index]], dim=1)
        if self.dense is not None:
            return self.dense[index], sizes
        gather = self._copied if self.device.type == "cpu" else self._gathered
        return gather(index, sizes), sizes

    def _copied(self, index: Tensor, sizes: Tensor) -> Tensor:
        """One copy per picture: on the CPU far faster than an index per pixel."""
        height, width = sizes.amax(0).tolist()
        pixels = torch.zeros(len(index), self.channels, height, width, dtype=torch.uint8)
        starts = self.starts[index].tolist()
        for out, start, (h, w) in zip(pixels, starts, sizes.tolist(), strict=True):
            area = self.channels * h * w
            out[:, :h, :w] = self.flat[start : start + area].view(self.channels, h, w)
        return pixels

    def _gathered(self, index: Tensor, sizes: Tensor) -> Tensor:
        """One gather per channel: on a GPU far faster than a copy per picture."""
        height, width = sizes.amax(0).tolist()
        h, w = sizes[:, 0, None, None], sizes[:, 1, None, None]  # [B, 1, 1]
        y = torch.arange(height, device=self.device)[:, None]
        x = torch.arange(width, device=self.device)
        inside = (y < h) & (x < w)  # [B, H, W]
        at = torch.where(inside, self.starts[index][:, None, None] + y * w + x, 0)
        area = torch.where(inside, h * w, 0)
        planes = [self.flat[at + c * area] * inside for c in range(self.channels)]
        return torch.stack(planes, dim=1)


def load(
    source: Source,
    *,
    store_size: int,
    channels: int | None = None,
    device: torch.device | str = "cpu",
    workers: int | None = None,
    budget_bytes: int | None = None,
    cache_dir: str | Path | None = None,
    progress: bool = True,
) -> Pictures:
    """Decode every picture once; those that cannot be read are left out and named in `skipped`.

    Channels are 3 unless given (pixels that come decoded keep their own). What outgrows
    `budget_bytes` (half the free memory unless given) goes to a mapped file for the next run too.
    """
    channels = _channels(source, channels)
    folder = Path(cache_dir) if cache_dir else default_folder()
    key = None
    if source.stamp is not None:
        settings = f"{source.name} {store_size} {channels} {VERSION}"
        key = digest([settings, source.stamp()])
    stored = open_stored(folder, key) if key else None
    if stored is None:
        budget = free_memory() // 2 if budget_bytes is None else budget_bytes
        with Store(folder, key or f"{os.getpid()}-{id(source)}", budget) as store:
            order = decoded_in_order(
                source,
                range(len(source)),
                store_size=store_size,
                channels=channels,
                workers=workers,
                progress=progress,
            )
            for i, one in enumerate(order):
                if isinstance(one, str):
                    store.skip(source.names[i], one)
                else:
                    store.add(i, one.transpose(2, 0, 1))
            _refuse_nothing(source, store.skipped)
            stored = store.finish(keep=key is not None)
    kept = stored.kept
    whole = len(kept) == len(source)
    return Pictures(
        stored.flat,
        torch.from_numpy(stored.heights),
        torch.from_numpy(stored.widths),
        channels=channels,
        names=source.names if whole else [source.names[i] for i in kept],
        labels=None if source.labels is None else torch.from_numpy(source.labels[kept]),
        class_names=source.class_names,
        skipped=stored.skipped,
        notes=source.notes,
    ).to(device)


def free_memory() -> int:
    """Bytes that can be taken without swapping."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _channels(source: Source, channels: int | None) -> int:
    if channels is None:
        first = source.read(0) if len(source) and source.stamp is None else None
        return first.shape[2] if isinstance(first, np.ndarray) else 3
    if channels not in MODES:
        raise UserError(
            f"data.channels is {channels}; picture files give 1 (grey), 3 (colour) or 4 (colour "
            "and transparency)."
        )
    return channels


def _refuse_nothing(source: Source, skipped: list[tuple[str, str]]) -> None:
    if len(skipped) < len(source):
        return
    reasons = listed([f"{name} ({why})" for name, why in skipped], 3)
    found = f"All {len(source)} pictures of {source.name} are unreadable: {reasons}."
    hint = "Are the files complete? Open one in a picture viewer."
    raise UserError(f"{found} {hint}" if len(source) else f"{source.name} has no pictures.")
