"""The interface to images by number as pixels, and its implementation by a cache."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

from selfsight.data.image_order import Shards
from selfsight.ragged_batch import Ragged

COPY_THREADS = 4  # more do not copy faster: memory bandwidth is the limit
Allocate = Callable[[int], Tensor]  # returns a uint8 tensor of so many bytes


@runtime_checkable  # tests check argument types at run time
class ImageStore(Protocol):
    """Images by number. The loader, the evaluations and the report read images through this."""

    channels: int
    names: Sequence[str]
    labels: Tensor | None
    class_names: tuple[str, ...]
    skipped: list[tuple[str, str]]
    """Name of each image that could not be read, and the reason."""
    notes: tuple[str, ...]
    """Sentences to show to the user."""

    def __len__(self) -> int: ...

    @property
    def device(self) -> torch.device:
        """Device of the pixels."""

    @property
    def shards(self) -> Shards | None:
        """Shards whose neighboring images are best read at once; None if any order is as fast."""

    def prefetch(self, index: Int64[Tensor, " b"]) -> None:
        """Start to prepare images that will be needed soon."""

    def pack(
        self, index: Int64[Tensor, " b"], allocate: Allocate
    ) -> tuple[Ragged, Int64[Tensor, " b"]]:
        """Copy the images into one new buffer; also return their numbers.

        A number differs from `index` where an unreadable image was replaced by another one.
        """


class CachedImages:
    """Decoded pixels of all images, one after the other, each as [C, H, W].

    They are uint8, or uint16 or float32 for images that are not photographs.
    """

    def __init__(
        self,
        flat: Shaped[Tensor, " values"],
        heights: Int64[Tensor, " n"],
        widths: Int64[Tensor, " n"],
        *,
        channels: int,
        names: Sequence[str],
        labels: Int64[Tensor, " n"] | None = None,
        class_names: tuple[str, ...] = (),
        skipped: Sequence[tuple[str, str]] = (),
        readable: Int64[np.ndarray, " n"] | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.readable = readable  # their numbers in the source, if they were loaded from one
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
        """Device of the pixels."""
        return self.flat.device

    @property
    def num_bytes(self) -> int:
        """Size of all pixels."""
        return self.flat.nbytes

    @property
    def shards(self) -> Shards | None:
        """None: cached images are read in any order."""
        return None

    @cached_property
    def copy_threads(self) -> ThreadPoolExecutor:
        """Threads that copy the images of a batch."""
        return ThreadPoolExecutor(COPY_THREADS, thread_name_prefix="copy")

    def to(self, device: torch.device | str) -> "CachedImages":
        """Copy the images to another device."""
        return CachedImages(
            self.flat.to(device),
            self.heights,
            self.widths,
            channels=self.channels,
            names=self.names,
            labels=None if self.labels is None else self.labels.to(device),
            class_names=self.class_names,
            skipped=self.skipped,
            readable=self.readable,
            notes=self.notes,
        )

    def select(self, index: Int64[Tensor, " b"]) -> "CachedImages":
        """Copy these images into a store of their own, in this order."""
        index = index.cpu()
        starts, sizes = self.locate(index)
        lengths = self.channels * sizes.prod(dim=1)
        first = starts - (lengths.cumsum(0) - lengths)  # what a value moves by
        place = torch.arange(int(lengths.sum())) + first.repeat_interleave(lengths)
        return CachedImages(
            self.flat[place.to(self.device)],
            self.heights[index],
            self.widths[index],
            channels=self.channels,
            names=[self.names[i] for i in index.tolist()],
            labels=None if self.labels is None else self.labels[index.to(self.labels.device)],
            class_names=self.class_names,
            notes=self.notes,
        )

    def locate(
        self, index: Int64[Tensor, " b"]
    ) -> tuple[Int64[Tensor, " b"], Int64[Tensor, "b 2"]]:
        """First value of each image, and its height and width; on the CPU."""
        return self.starts[index], torch.stack([self.heights[index], self.widths[index]], dim=1)

    def prefetch(self, index: Int64[Tensor, " b"]) -> None:
        """Do nothing: cached images need no preparation."""

    def pack(
        self, index: Int64[Tensor, " b"], allocate: Allocate
    ) -> tuple[Ragged, Int64[Tensor, " b"]]:
        """Copy the images into one new buffer; also return their numbers, which are `index`."""
        starts, sizes = self.locate(index)
        flat = self.flat.numpy()
        lengths = (self.channels * sizes[:, 0] * sizes[:, 1]).tolist()
        pixels = [flat[a : a + n] for a, n in zip(starts.tolist(), lengths, strict=True)]
        return copy_to_ragged(pixels, sizes, self.channels, allocate, self.copy_threads), index


def copy_to_ragged(
    pixels: Sequence[np.ndarray],
    sizes: Int64[Tensor, "b 2"],
    channels: int,
    allocate: Allocate,
    threads: ThreadPoolExecutor,
) -> Ragged:
    """Copy images [C, H, W] into one new buffer, one after the other, with a few threads."""
    ends = np.cumsum([image.size for image in pixels])
    dtype = torch.from_numpy(pixels[0][:0]).dtype
    flat = allocate(int(ends[-1]) * dtype.itemsize).view(dtype)
    out = flat.numpy()

    def copy(first: int) -> None:
        images = zip(pixels[first::COPY_THREADS], ends[first::COPY_THREADS], strict=True)
        for image, end in images:
            out[end - image.size : end] = image.reshape(-1)  # without the interpreter's lock

    list(threads.map(copy, range(COPY_THREADS)))
    starts = torch.from_numpy(ends) - sizes.prod(1) * channels
    largest = (int(sizes[:, 0].max()), int(sizes[:, 1].max()))
    return Ragged(flat, starts, sizes, channels, largest)
