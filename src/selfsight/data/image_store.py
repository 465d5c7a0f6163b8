"""Images by number, as uint8 pixels: here those of a whole source, decoded once and kept."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from selfsight.data.order import Shards
from selfsight.ragged import Ragged

COPIERS = 4  # threads that gather a batch: more do not make memory faster
Room = Callable[[int], Tensor]  # at least so many bytes, for pixels to be written to


class Images:
    """Pixels of images of any sizes, one after the other, each as [C, H, W]."""

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
        self.flat, self.heights, self.widths = flat, heights.cpu(), widths.cpu()
        self.channels, self.names, self.labels = channels, names, labels
        self.class_names, self.skipped, self.notes = class_names, list(skipped), notes
        area = channels * self.heights * self.widths
        self.starts = area.cumsum(0) - area
        self.largest = (int(self.heights.max()), int(self.widths.max())) if len(names) else (0, 0)

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

    @cached_property
    def pool(self) -> ThreadPoolExecutor:
        """Threads that gather batches."""
        return ThreadPoolExecutor(COPIERS, thread_name_prefix="copy")

    @property
    def kept(self) -> bool:
        """Whether a batch is only numbers: its pixels lie on `device` already."""
        return True

    @property
    def shards(self) -> Shards | None:
        """Which neighbors are best read together; kept ones can be taken from anywhere."""
        return None

    def to(self, device: torch.device | str) -> "Images":
        """The same images on another device."""
        return Images(
            self.flat.to(device),
            self.heights,
            self.widths,
            channels=self.channels,
            names=self.names,
            labels=None if self.labels is None else self.labels.to(device),
            class_names=self.class_names,
            skipped=self.skipped,
            notes=self.notes,
        )

    def ragged(self, index: Int64[Tensor, " b"]) -> Ragged:
        """The images as they lie, on `device`; `index` is best on the host."""
        starts, sizes = self.where(index.cpu())
        largest = (int(sizes[:, 0].max()), int(sizes[:, 1].max())) if len(sizes) else (0, 0)
        there = Ragged(self.flat, starts, sizes, self.channels, largest)
        return there.to(self.device)

    def where(self, index: Int64[Tensor, " b"]) -> tuple[Int64[Tensor, " b"], Int64[Tensor, "b 2"]]:
        """First byte, and height and width, on the host."""
        return self.starts[index], torch.stack([self.heights[index], self.widths[index]], dim=1)

    def batch(
        self, index: Int64[Tensor, " b"]
    ) -> tuple[UInt8[Tensor, "b c h w"], Int64[Tensor, "b 2"]]:
        """Pixels, padded with zeros to the largest, and each image's own height and width."""
        images = self.ragged(index)
        return images.padded(), images.sizes

    def expect(self, index: Int64[Tensor, " b"]) -> None:
        """These images will be asked for soon; kept ones need no preparation."""

    def packed(self, index: Int64[Tensor, " b"], room: Room) -> tuple[Ragged, Int64[Tensor, " b"]]:
        """A copy of the images in the room given, and which images they are."""
        starts, sizes = self.where(index)
        flat = self.flat.numpy()
        area = (self.channels * sizes[:, 0] * sizes[:, 1]).tolist()
        parts = [flat[a : a + n] for a, n in zip(starts.tolist(), area, strict=True)]
        return pack(parts, sizes, self.channels, room, self.pool), index


def pack(
    parts: Sequence[np.ndarray],
    sizes: Int64[Tensor, "b 2"],
    channels: int,
    room: Room,
    pool: ThreadPoolExecutor,
) -> Ragged:
    """Images [C, H, W] from anywhere, copied one behind the other by a few threads."""
    ends = np.cumsum([part.size for part in parts])
    flat = room(int(ends[-1]))
    out = flat.numpy()

    def copy(first: int) -> None:
        for part, end in zip(parts[first::COPIERS], ends[first::COPIERS], strict=True):
            out[end - part.size : end] = part.reshape(-1)  # NumPy lets go of the interpreter

    list(pool.map(copy, range(COPIERS)))
    starts = torch.from_numpy(ends) - sizes.prod(1) * channels
    largest = (int(sizes[:, 0].max()), int(sizes[:, 1].max()))
    return Ragged(flat, starts, sizes, channels, largest)
