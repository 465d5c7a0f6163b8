"""Images for evaluation: crops for each transform, decoded at full size, and pixels to augment."""

from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from selfsight.data import CachedImages, ImageStore, Source, load_images
from selfsight.data.eval_transform import EvalTransform
from selfsight.data.sources.source import select_images
from selfsight.data.storage_plan import move_if_fits
from selfsight.errors import UserError, list_first

MIN_STORE_SIZE = 256


class EvalImages:
    """The images of a source, decoded by the CPU once for each transform.

    Crops are cached per transform and shared by encoders. Protocols that augment read pixels of a
    stored size instead. Both are on the device if they fit.
    """

    def __init__(
        self,
        source: Source,
        transform: EvalTransform,
        device: torch.device | str = "cpu",
        *,
        store_size: int | None = None,
    ) -> None:
        """Decode the crops of `transform`, or pixels of `store_size` if it is given."""
        self.source, self.device = source, torch.device(device)
        self.loaded: dict[tuple[object, ...], CachedImages] = {}
        self.first: dict[str, Any] = {"transform": transform}
        if store_size is not None:
            kind = {"channels": transform.channels, "dtype": transform.dtype}
            self.first = {"store_size": store_size, **kind}
        first = self.load_first()
        self.names, self.labels, self.class_names = first.names, first.labels, first.class_names
        self.skipped = first.skipped
        self.notes = (*first.notes, *describe_skipped(first))
        if first.skipped:  # leave them out from now on, so that all share their numbering
            assert first.readable is not None
            self.source = select_images(source, first.readable)

    def __len__(self) -> int:
        return len(self.names)

    def crops(
        self, transform: EvalTransform, index: Int64[Tensor, " m"] | None = None
    ) -> tuple[CachedImages, Int64[Tensor, " m"]]:
        """Crops of at least the images `index`, and where in these crops each of them is.

        If fewer than half are needed and not all are in memory, only those are decoded.
        """
        index = torch.arange(len(self)) if index is None else index.cpu()
        if 2 * len(index) >= len(self) or _key(transform=transform) in self.loaded:
            return self._load(transform=transform), index
        selected, rows = index.unique(return_inverse=True)
        part = load_images(select_images(self.source, selected.numpy()), transform=transform)
        self._check_readable(len(part), len(selected))
        return move_if_fits(part, self.device), rows

    def pixels(self, store_size: int, channels: int, dtype: str = "uint8") -> CachedImages:
        """All images with a short side of at most `store_size`, for random crops."""
        return self._load(store_size=store_size, channels=channels, dtype=dtype)

    def load_first(self) -> CachedImages:
        """All images as they were decoded first: as crops, or at the stored size."""
        return self._load(**self.first)

    def load_like(self, other: "EvalImages") -> CachedImages:
        """All images as another set was decoded first."""
        return self._load(**other.first)

    def _load(self, **settings: Any) -> CachedImages:
        key = _key(**settings)
        if key not in self.loaded:
            images = load_images(self.source, **settings)
            if self.loaded:
                self._check_readable(len(images), len(self))
            self.loaded[key] = move_if_fits(images, self.device)
        return self.loaded[key]

    def _check_readable(self, now: int, before: int) -> None:
        if now != before:
            raise UserError(
                f"{before} images of {self.source.name} could be read, and now {now}. Were files "
                "changed during the evaluation? Start it again."
            )


def describe_skipped(images: ImageStore) -> tuple[str, ...]:
    """A sentence on the images that cannot be read, if there are any."""
    if not images.skipped:
        return ()
    count, total = len(images.skipped), len(images) + len(images.skipped)
    files = list_first([f"{name} ({why})" for name, why in images.skipped])
    return (f"{count:,} of {total:,} images cannot be read and are left out: {files}.",)


def _key(*, transform: EvalTransform | None = None, **settings: Any) -> tuple[object, ...]:
    """What decides the pixels: not mean and std."""
    return tuple((transform.cropping if transform else settings).items())


Images = ImageStore | EvalImages


def describe_transform(images: Images, transform: EvalTransform) -> dict[str, Any]:
    """The transform and what it is applied to, for the result file."""
    full = isinstance(images, EvalImages)
    pixels = "full size, decoded on the CPU" if full else "as stored for training"
    return {"pixels": pixels, **transform.settings()}


def augmentation_size(transform: EvalTransform) -> int:
    """Short side at which protocols that augment store the images of an encoder."""
    return max(MIN_STORE_SIZE, transform.resize)
